"""Login mechanisms of a SASL listener, and the keys that OAUTHBEARER tokens are checked with."""

import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from msgspec import field

from tallystick import _lazy
from tallystick.broker.config.listeners import Listener, list_plain_users
from tallystick.broker.config.oauth_settings import find_key_file
from tallystick.broker.server.authentication_counts import AuthenticationCounts
from tallystick.broker.server.handshakes import HandshakeTable
from tallystick.broker.server.login import Login
from tallystick.broker.server.signing_keys import SigningKeys
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value
from tallystick.security.https_opener import build_https_opener
from tallystick.security.sasl.jwt_validator import build_jwt_validator
from tallystick.security.sasl.key_set import KeySetFailure
from tallystick.security.sasl.mechanism import SaslServer
from tallystick.security.sasl.oauthbearer import OAUTHBEARER, OauthBearerServer
from tallystick.security.sasl.plain import PLAIN, PlainServer
from tallystick.security.sasl.scram import SCRAM_MECHANISMS, ScramMechanism
from tallystick.security.sasl.scram_decoys import FoundCredential, find_or_invent
from tallystick.security.sasl.scram_server import ScramServer
from tallystick.security.tls.failures import explain_handshake_failure

DOCUMENT_BYTES_MAX: Final = 1024 * 1024
_TIMEOUT_S: Final = 10.0
_PIECE_BYTES: Final = 64 * 1024

FindScramCredential = Callable[[ScramMechanism, str], FoundCredential]


def find_no_credential(mechanism: ScramMechanism, user: str) -> FoundCredential:
    """Know no user, where no broker keeps credentials."""
    return find_or_invent(mechanism, user, None, secret=b"")


class LoginUnderWay(Protocol):
    """A connection before its login is complete."""

    def end(self, why: str) -> None:
        """Close it, with a text for the log."""
        ...


class LoginRules(Value):
    """The rules of one listener; each connection has a login of its own.

    signing_keys   of OAUTHBEARER; None if it is not enabled
    own_reauth_ms  of mechanisms that have a limit of their own
    plain_users    passwords of PLAIN by user; replaced in place when the settings are read again
    """

    mechanisms: Mapping[str, Callable[[], SaslServer]]
    max_reauth_ms: int
    bytes_max: int
    timeout_s: float
    failure_delay_s: float
    now_ms: Callable[[], int]
    under_way: HandshakeTable[LoginUnderWay]
    signing_keys: SigningKeys | None = None
    own_reauth_ms: Mapping[str, int] = field(default_factory=dict)
    counts: AuthenticationCounts = field(default_factory=AuthenticationCounts)
    plain_users: dict[str, Secret] = field(default_factory=dict)

    def use_plain_users(self, listener: Listener) -> None:
        """Take the users of changed settings; connections that are logged in stay so."""
        users = list_plain_users(listener.jaas.get(PLAIN))
        self.plain_users.clear()
        self.plain_users.update(users)

    def make_login(self) -> Login:
        return Login(self.mechanisms, self.max_reauth_ms, self.own_reauth_ms)


def make_login_rules(
    listener: Listener, find_credential: FindScramCredential = find_no_credential
) -> LoginRules | None:
    """Return the rules of a listener; None if it asks for no login. Raises: BadConfig.

    Args:
        find_credential: asked at each login with SCRAM, so that a change holds from then on.
    """
    if not listener.protocol.uses_sasl:
        return None
    settings = listener.settings
    now_ms = SystemClock().now_ms
    mechanisms: dict[str, Callable[[], SaslServer]] = {}
    signing_keys: SigningKeys | None = None
    plain_users: dict[str, Secret] = {}
    for mechanism in settings.sasl_enabled_mechanisms:
        if mechanism == PLAIN:
            plain_users.update(list_plain_users(listener.jaas.get(PLAIN)))
            mechanisms[PLAIN] = partial(PlainServer, plain_users.get)
        elif (scram := SCRAM_MECHANISMS.get(mechanism)) is not None:
            mechanisms[mechanism] = partial(ScramServer, scram, partial(find_credential, scram))
        elif mechanism == OAUTHBEARER:
            mechanisms[OAUTHBEARER], signing_keys = _make_oauth_login(listener, now_ms)
    return LoginRules(
        mechanisms,
        settings.connections_max_reauth_ms,
        settings.sasl_server_max_receive_size,
        settings.sasl_handshake_timeout_ms / 1000,
        settings.connection_failed_authentication_delay_ms / 1000,
        now_ms,
        HandshakeTable(settings.sasl_logins_max),
        signing_keys,
        listener.max_reauth,
        plain_users=plain_users,
    )


def _make_oauth_login(
    listener: Listener, now_ms: Callable[[], int]
) -> tuple[Callable[[], SaslServer], SigningKeys]:
    """Return a factory of the server's side of a login, and its keys, which are not fetched yet.

    Raises: BadConfig, without the library for signatures.
    """
    settings = listener.oauth
    url = settings.sasl_oauthbearer_jwks_endpoint_url or ""
    fetch = partial(fetch_jwks, url, settings.https_ca_location)
    keys = SigningKeys(listener.name, fetch, settings.fetch_intervals)
    try:
        validate = build_jwt_validator(keys.find, settings.claim_rules, now_ms)
    except _lazy.MissingLibrary as exc:
        raise BadConfig(f"sasl.enabled.mechanisms: OAUTHBEARER: {exc}") from exc
    return partial(OauthBearerServer, validate), keys


def fetch_jwks(url: str, ca_location: str | None) -> bytes:
    """Return the document with an identity provider's keys, from its server or a file. Blocks: for a thread.

    By https only, and a redirect to another host is an error (CVE-2025-27817).

    Raises: KeySetFailure.
    """
    path = find_key_file(url)
    if path is not None:
        return _read_file(Path(path))
    http_client, errors = _lazy.load("http.client"), _lazy.load("urllib.error")
    give_up_at = time.monotonic() + _TIMEOUT_S
    try:
        opener = build_https_opener(ssl.create_default_context(cafile=ca_location))
    except OSError as exc:
        raise KeySetFailure(f"https.ca.location: {exc}") from None
    document = b""
    try:
        request = _lazy.load("urllib.request").Request(url, headers={"Accept": "application/json"})
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            while piece := response.read1(_PIECE_BYTES):
                document += piece
                _check_size(len(document))
                if time.monotonic() > give_up_at:
                    raise KeySetFailure(f"it was not read within {_TIMEOUT_S:.0f} s")
    except errors.HTTPError as exc:
        with exc:
            raise KeySetFailure(f"the endpoint answered {exc.code}") from None
    except (OSError, ValueError, http_client.HTTPException) as exc:
        reason = exc.reason if isinstance(exc, errors.URLError) else exc
        if isinstance(reason, ssl.SSLError):
            raise KeySetFailure(f"{explain_handshake_failure(reason)} (https.ca.location)") from None
        raise KeySetFailure(f"the endpoint does not answer: {reason}") from None
    return document


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            document = file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as exc:
        raise KeySetFailure(str(exc)) from None
    _check_size(len(document))
    return document


def _check_size(size: int) -> None:
    if size > DOCUMENT_BYTES_MAX:
        raise KeySetFailure(f"it has more than {DOCUMENT_BYTES_MAX} bytes")
