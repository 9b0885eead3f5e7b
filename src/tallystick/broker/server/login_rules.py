"""What a SASL listener lets its clients log in with."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from msgspec import field

from tallystick.broker.config.listeners import Listener, list_plain_users
from tallystick.broker.server.authentication_counts import AuthenticationCounts
from tallystick.broker.server.handshakes import HandshakeTable
from tallystick.broker.server.login import Login
from tallystick.broker.server.oauth_login import make_oauth_login
from tallystick.broker.server.signing_keys import SigningKeys
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.value import Value
from tallystick.security.sasl.mechanism import SaslServer
from tallystick.security.sasl.oauthbearer import OAUTHBEARER
from tallystick.security.sasl.plain import PLAIN, PlainServer
from tallystick.security.sasl.scram import SCRAM_MECHANISMS, ScramMechanism
from tallystick.security.sasl.scram_decoys import FoundCredential, find_or_invent
from tallystick.security.sasl.scram_server import ScramServer

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
    for mechanism in settings.sasl_enabled_mechanisms:
        if mechanism == PLAIN:
            find_password = list_plain_users(listener.jaas.get(PLAIN)).get
            mechanisms[PLAIN] = partial(PlainServer, find_password)
        elif (scram := SCRAM_MECHANISMS.get(mechanism)) is not None:
            mechanisms[mechanism] = partial(ScramServer, scram, partial(find_credential, scram))
        elif mechanism == OAUTHBEARER:
            mechanisms[OAUTHBEARER], signing_keys = make_oauth_login(listener, now_ms)
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
    )
