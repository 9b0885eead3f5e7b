"""The login of one connection: which requests it takes before, during and after SASL.

    VERSIONS -> HANDSHAKE -> AUTHENTICATE -> COMPLETE -> (AUTHENTICATE -> COMPLETE)*

Before COMPLETE only ApiVersions, once, SaslHandshake and SaslAuthenticate are taken; anything else closes the
connection without an answer, so that a stranger learns nothing and makes the broker do nothing. A login that
fails is answered, after a delay, and the connection closed. A session that is limited is renewed on the same
connection, by the same mechanism and under the same name [LGN-3].

Whatever arrives is answered, passed on or refused by LoginRefused [LGN-1]; a login completes under the name
that the mechanism has verified [LGN-2].

Source: KIP-43, KIP-152, KIP-368; Kafka SaslServerAuthenticator.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from struct import Struct
from types import MappingProxyType
from typing import Final, TypeVar

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import TallystickError, shorten
from tallystick.kernel.value import Value
from tallystick.protocol import DecodeError, decode_prefix, encode_parts
from tallystick.protocol.apis import API_SPECS, ApiKey, ApiSpec
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tallystick.security.sasl.mechanism import (
    SaslAuthenticationFailed,
    SaslServer,
    describe_bad_credentials,
)

Q = TypeVar("Q")

# KIP-368: "re-authentication may occur no more than once per second". From the beginning of a renewal to that
# of the next, as in KafkaChannel.maybeBeginServerReauthentication; the login itself does not count.
REAUTHENTICATION_INTERVAL_MS: Final = 1000
NO_LIMITS: Final[Mapping[str, int]] = MappingProxyType({})
_MECHANISM_SHOWN_MAX: Final = 40
_HEADER_START: Final = Struct(">hhi")
_ANSWER_START: Final = Struct(">ii")


class LoginState(Enum):
    """State of a login; a re-authentication goes back to AUTHENTICATE."""

    VERSIONS = auto()
    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    COMPLETE = auto()
    FAILED = auto()


class LoginRefused(TallystickError):
    """The connection is closed without an answer; the text is for the log."""


class SessionExpired(LoginRefused):
    """A session has ended, and the client goes on without a new login."""


class LoginAnswer(Value):
    """An answer to a request of the login; `failure` is why the connection is closed behind it."""

    frame: bytes
    failure: str | None = None


class Login:
    """The login of one connection. Told the time, it asks no clock."""

    def __init__(
        self,
        mechanisms: Mapping[str, Callable[[], SaslServer]],
        max_reauth_ms: int,
        own_reauth_ms: Mapping[str, int] = NO_LIMITS,
    ) -> None:
        """Create a login that has heard nothing.

        Args:
            mechanisms: makes the server side of a login, by the name of the mechanism.
            max_reauth_ms: connections.max.reauth.ms, 0 for sessions that do not end.
            own_reauth_ms: the same of mechanisms that have their own.
        """
        self._mechanisms, self._max_reauth_ms = mechanisms, max_reauth_ms
        self._own_reauth_ms = own_reauth_ms
        self.state = LoginState.VERSIONS
        self.principal: str | None = None
        self.success_count = 0
        self.can_renew = True
        self._mechanism = ""
        self._server: SaslServer | None = None
        self._expires_ms: int | None = None
        self._renewal_began_ms: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether a login has succeeded, so that large requests are received."""
        return self.principal is not None and self.state is not LoginState.FAILED

    def take(self, frame: memoryview, now_ms: int) -> LoginAnswer | None:
        """Handle a request; None: it is one for the broker.

        Raises: LoginRefused, to close the connection without an answer; KeyNeeded, to be given the same
            request again once the key was looked for, and nothing has changed before.
        """
        if len(frame) < _HEADER_START.size:
            raise LoginRefused(f"a request of {len(frame)} bytes has no room for a header")
        key, version, _ = _HEADER_START.unpack_from(frame)
        if self.state is LoginState.COMPLETE and key not in (
            ApiKey.SASL_HANDSHAKE,
            ApiKey.SASL_AUTHENTICATE,
        ):
            if self._expires_ms is not None and now_ms >= self._expires_ms:
                if key == ApiKey.API_VERSIONS:
                    return None
                raise SessionExpired("its session expired, and it did not log in again (KIP-368)")
            return None
        if key == ApiKey.API_VERSIONS and self.state is LoginState.VERSIONS:
            spec = API_SPECS[ApiKey.API_VERSIONS]
            # A client newer than this broker gets the served versions, and asks once more (KIP-511).
            if spec.min_version <= version <= spec.max_version:
                self.state = LoginState.HANDSHAKE
            return None
        if key == ApiKey.SASL_HANDSHAKE:
            return self._take_handshake(*_decode(frame, SaslHandshakeRequest), now_ms)
        if key == ApiKey.SASL_AUTHENTICATE:
            return self._take_token(*_decode(frame, SaslAuthenticateRequest), now_ms)
        raise LoginRefused(f"API key {key} before the login is complete")

    def _take_handshake(
        self, header: "_Header", request: SaslHandshakeRequest, now_ms: int
    ) -> LoginAnswer | None:
        enabled = tuple(self._mechanisms)
        # A mechanism's name has at most 20 characters (RFC 4422, section 3.1), a text of the protocol 32,767.
        mechanism_text = repr(request.mechanism[:_MECHANISM_SHOWN_MAX])
        if self.state is LoginState.COMPLETE:
            began_ms = self._renewal_began_ms
            too_soon = began_ms is not None and 0 <= now_ms - began_ms < REAUTHENTICATION_INTERVAL_MS
            if self._expires_ms is None or too_soon:
                # Kafka's answer where the session needs no renewal; the connection stays as it is.
                return _answer(header, _refuse_handshake(ErrorCode.ILLEGAL_SASL_STATE, ()))
            self._renewal_began_ms = now_ms
            if request.mechanism != self._mechanism:
                return self._fail(
                    header,
                    _refuse_handshake(ErrorCode.UNSUPPORTED_SASL_MECHANISM, (self._mechanism,)),
                    f"it logged in with {self._mechanism} and would go on with {mechanism_text}",
                )
        elif self.state not in (LoginState.VERSIONS, LoginState.HANDSHAKE):
            return self._fail(
                header,
                _refuse_handshake(ErrorCode.ILLEGAL_SASL_STATE, enabled),
                "a second SaslHandshake in one login",
            )
        if header.version == 0:
            raise LoginRefused("SaslHandshake version 0, whose tokens have no header, is not served")
        if request.mechanism not in self._mechanisms:
            return self._fail(
                header,
                _refuse_handshake(ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled),
                f"mechanism {mechanism_text}, and {', '.join(enabled)} are enabled",
            )
        self._mechanism = request.mechanism
        self._server = self._mechanisms[request.mechanism]()
        self.state = LoginState.AUTHENTICATE
        return _answer(header, SaslHandshakeResponse(mechanisms=enabled))

    def _take_token(
        self, header: "_Header", request: SaslAuthenticateRequest, now_ms: int
    ) -> LoginAnswer | None:
        server = self._server
        if self.state is LoginState.COMPLETE:
            return _answer(header, _refuse(ErrorCode.ILLEGAL_SASL_STATE, "there is no login under way"))
        if self.state is not LoginState.AUTHENTICATE or server is None:
            raise LoginRefused("SaslAuthenticate before SaslHandshake")
        try:
            token = server.respond(request.auth_bytes)
        except SaslAuthenticationFailed as exc:
            return self._fail(header, _refuse(ErrorCode.SASL_AUTHENTICATION_FAILED, str(exc)), exc.log_text)
        if not server.complete:
            return _answer(header, SaslAuthenticateResponse(auth_bytes=token))
        name = server.principal
        if name is None or (self.principal is not None and name != self.principal):
            # KIP-368; Kafka's text.
            why = f"Cannot change principals during re-authentication from User:{self.principal}: User:{name}"
            return self._fail(
                header,
                _refuse(
                    ErrorCode.SASL_AUTHENTICATION_FAILED,
                    why if self.principal else describe_bad_credentials(self._mechanism),
                ),
                why,
            )
        self.principal, self._server = name, None
        self.success_count += 1
        # KIP-368: version 1 tells the client how long its session lives.
        self.can_renew = header.version >= 1
        lifetime_ms = self._limit_session(server.session_expires_ms, now_ms)
        self.state = LoginState.COMPLETE
        return _answer(header, SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms))

    def _limit_session(self, token_expires_ms: int | None, now_ms: int) -> int:
        """Set when the session ends, and return its lifetime for the client; 0 for no end."""
        limit_ms = self._own_reauth_ms.get(self._mechanism, self._max_reauth_ms)
        lives = [limit_ms] if limit_ms else []
        if token_expires_ms is not None:
            lives.append(max(1, token_expires_ms - now_ms))
        self._expires_ms = now_ms + min(lives) if lives else None
        return min(lives, default=0)

    def _fail(self, header: "_Header", response: object, why: str) -> LoginAnswer:
        self.state = LoginState.FAILED
        return LoginAnswer(_answer(header, response).frame, why)


class _Header(Value):
    spec: ApiSpec
    version: int
    correlation_id: int


def _decode(frame: memoryview, request: type[Q]) -> tuple[_Header, Q]:
    key, version, correlation_id = _HEADER_START.unpack_from(frame)
    spec = API_SPECS[ApiKey(key)]
    if not spec.min_version <= version <= spec.max_version:
        raise LoginRefused(f"{spec.name} version {version} is not served")
    try:
        _, at = decode_prefix(RequestHeader, frame, spec.get_request_header_version(version))
        value, _ = decode_prefix(request, frame[at:], version)
    except DecodeError as exc:
        raise LoginRefused(f"{spec.name} version {version} cannot be read: {exc}") from exc
    return _Header(spec, version, correlation_id), value


def _refuse_handshake(code: ErrorCode, enabled: tuple[str, ...]) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=code, mechanisms=enabled)


def _refuse(code: ErrorCode, why: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=shorten(why), auth_bytes=b"")


def _answer(header: _Header, response: object) -> LoginAnswer:
    body = b"".join(encode_parts(response, header.version))
    tags = b"\0" if header.spec.get_response_header_version(header.version) else b""
    size = 4 + len(tags) + len(body)
    return LoginAnswer(_ANSWER_START.pack(size, header.correlation_id) + tags + body)
