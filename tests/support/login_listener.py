"""Scripts for a ScriptedBroker that asks for a login, with the server's half of our mechanisms."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.support.scripted_broker import Answer, HangUp, ScriptedBroker, Seen

from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tallystick.security.sasl.mechanism import SaslAuthenticationFailed, SaslServer


@dataclass
class LoginListener:
    """Logins of the connections of one broker."""

    mechanisms: Mapping[str, Callable[[], SaslServer]]
    session_lifetime_ms: int = 0
    principals: list[str] = field(default_factory=list)
    """Of every login that succeeded."""
    too_early: list[ApiKey] = field(default_factory=list)
    """Requests on a connection that was not logged in, or whose login was under way."""
    _halves: dict[int, SaslServer] = field(default_factory=dict)

    def install(self, broker: ScriptedBroker) -> None:
        """Answer logins on this broker, and hang up on anything that comes before one."""
        broker.scripts[ApiKey.SASL_HANDSHAKE] = self._handle_handshake
        broker.scripts[ApiKey.SASL_AUTHENTICATE] = self._handle_token
        metadata = broker.scripts.get(ApiKey.METADATA, lambda seen: broker.metadata())
        broker.scripts[ApiKey.METADATA] = lambda seen: self.guard(seen, metadata)

    def guard(self, seen: Seen, script: Callable[[Seen], object]) -> Answer:
        """Run a script for a connection that is logged in."""
        half = self._halves.get(seen.connection)
        if half is None or not half.complete:
            self.too_early.append(seen.key)
            raise HangUp
        return script(seen)

    def _handle_handshake(self, seen: Seen) -> Answer:
        assert isinstance(seen.request, SaslHandshakeRequest)
        create = self.mechanisms.get(seen.request.mechanism)
        names = tuple(self.mechanisms)
        if create is None:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return SaslHandshakeResponse(error_code=code, mechanisms=names)
        self._halves[seen.connection] = create()
        return SaslHandshakeResponse(mechanisms=names)

    async def _handle_token(self, seen: Seen) -> Answer:
        assert isinstance(seen.request, SaslAuthenticateRequest)
        half = self._halves[seen.connection]
        try:
            answer = half.respond(bytes(seen.request.auth_bytes))
        except SaslAuthenticationFailed as exc:
            await asyncio.sleep(0)
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(exc), auth_bytes=b""
            )
        if half.complete:
            assert half.principal is not None
            self.principals.append(half.principal)
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=self.session_lifetime_ms)
