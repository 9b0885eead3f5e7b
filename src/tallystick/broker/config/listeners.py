"""Listeners: their names, addresses and protocols, and the settings that each has for itself.

`listener.name.<name>.<setting>` wins over `<setting>`, for every setting of TLS and of logins. Names of
listeners are free once `listener.security.protocol.map` maps them, and are compared without case.

Source: Kafka's SocketServerConfigs, AbstractKafkaConfig; KIP-103, KIP-226.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec import field

from tallystick.broker.config.endpoint import WILDCARD_HOSTS, Endpoint
from tallystick.broker.config.oauth_settings import CALLBACK_HANDLER, OauthSettings, find_handler_problem
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import (
    BadConfig,
    SettingType,
    describe_unknown,
    list_settings,
    parse_values,
    setting,
)
from tallystick.kernel.value import Value
from tallystick.security.protocol import SecurityProtocol
from tallystick.security.sasl.jaas import BadJaasConfig, LoginModule, parse_jaas_config
from tallystick.security.sasl.oauthbearer import OAUTHBEARER
from tallystick.security.sasl.plain import PLAIN
from tallystick.security.sasl.scram import SCRAM_MECHANISMS
from tallystick.security.sasl.settings import MECHANISMS
from tallystick.security.tls.principal_rules import PrincipalRule, parse_principal_rules
from tallystick.security.tls.settings import TlsSettings

C = TypeVar("C")

JAAS: Final = "sasl.jaas.config"
# Mechanisms whose messages hold the secret itself; SCRAM's do not.
_IN_CLEAR: Final = (PLAIN, OAUTHBEARER)
_USER: Final = "user_"
_MAX_REAUTH: Final = "connections.max.reauth.ms"
_OAUTH_PREFIX: Final = f"{OAUTHBEARER.lower()}."
LISTENER_PREFIX: Final = "listener.name."
DEFAULT_LISTENERS: Final = "PLAINTEXT://127.0.0.1:9092"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Settings of one listener, apart from those of TLS."""

    ssl_principal_mapping_rules: str = setting(
        "DEFAULT", "Rules that shorten the name of a client's certificate to its principal (KIP-371)."
    )
    ssl_allow_dn_changes: bool = setting(
        False, "Whether a certificate that is reloaded may have another distinguished name."
    )
    ssl_allow_san_changes: bool = setting(
        False, "Whether a certificate that is reloaded may lack alternative names of the one before."
    )
    ssl_handshake_timeout_ms: int = setting(
        10_000,
        "How long a client may take for the handshake of TLS. Not Kafka's.",
        kind=SettingType.INT,
        low=1,
    )
    ssl_handshakes_max: int = setting(
        256,
        "Handshakes of TLS under way at once; one more ends the oldest of the address that has most. "
        "Not Kafka's.",
        kind=SettingType.INT,
        low=1,
    )
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        (),
        "Mechanisms that clients may log in with: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. A SASL "
        "listener needs one.",
    )
    sasl_server_max_receive_size: int = setting(
        524_288,
        "Largest request accepted before a login is complete, in bytes.",
        kind=SettingType.INT,
        low=1024,
    )
    sasl_handshake_timeout_ms: int = setting(
        10_000, "How long a client may take to log in. Not Kafka's.", kind=SettingType.INT, low=1
    )
    sasl_logins_max: int = setting(
        1_024,
        "Logins under way at once; one more ends the oldest of the address that has most. Not Kafka's.",
        kind=SettingType.INT,
        low=1,
    )
    connections_max_reauth_ms: int = setting(
        0, "How long a login is good for (KIP-368); 0: for the life of the connection.", low=0
    )
    connection_failed_authentication_delay_ms: int = setting(
        100, "How long the answer to a failed login is held back.", kind=SettingType.INT, low=0
    )
    ssl_reload_interval_ms: int = setting(
        10_000,
        "Interval between checks whether the files of keys and certificates have changed. Not Kafka's.",
        kind=SettingType.INT,
        low=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """Settings that are of one listener only with its prefix: without it they are the broker's."""

    max_connections: int = setting(
        INT32_MAX,
        "Maximum number of simultaneous connections of one listener, in addition to max.connections.",
        kind=SettingType.INT,
        low=1,
        dynamic=True,
    )


class Listener(Value, kw_only=True):
    """One listener.

    advertised  the address for clients; None: the one that is bound
    jaas        sasl.jaas.config by the name of the mechanism
    oauth       for OAUTHBEARER, its own prefix included
    max_reauth  connections.max.reauth.ms of mechanisms that have their own
    """

    name: str
    protocol: SecurityProtocol
    endpoint: Endpoint
    advertised: Endpoint | None = None
    tls: TlsSettings = TlsSettings()
    settings: ListenerSettings = ListenerSettings()
    jaas: Mapping[str, Secret] = field(default_factory=dict)
    oauth: OauthSettings = OauthSettings()
    max_reauth: Mapping[str, int] = field(default_factory=dict)
    max_connections: int = INT32_MAX

    def __str__(self) -> str:
        return f"{self.name}://{self.endpoint}"

    @property
    def principal_rules(self) -> tuple[PrincipalRule, ...]:
        return parse_principal_rules(self.settings.ssl_principal_mapping_rules)

    @property
    def is_open_to_the_network(self) -> bool:
        """Whether clients of other machines come in without a login and without encryption."""
        return self.protocol is SecurityProtocol.PLAINTEXT and not self.endpoint.is_loopback

    @property
    def lets_strangers_in(self) -> bool:
        """Whether clients of other machines come in without a login, be it over TLS."""
        is_known = self.protocol.uses_sasl or (
            self.protocol is SecurityProtocol.SSL and self.tls.ssl_client_auth == "required"
        )
        return not is_known and not self.endpoint.is_loopback

    @property
    def shows_secrets_to_the_network(self) -> bool:
        """Whether passwords or tokens cross a network that others may read."""
        is_readable = self.protocol is SecurityProtocol.SASL_PLAINTEXT and not self.endpoint.is_loopback
        return is_readable and any(name in _IN_CLEAR for name in self.settings.sasl_enabled_mechanisms)


_OAUTH_SETTINGS: Final = list_settings(OauthSettings)
LISTENER_SETTINGS: Final = list_settings(TlsSettings) | list_settings(ListenerSettings) | _OAUTH_SETTINGS

# Only with the prefix of a listener.
PREFIXED_SETTINGS: Final = list_settings(ListenerLimits)


def is_listener_setting(name: str) -> bool:
    """Return whether this is a setting of listeners, with or without the name of one."""
    return name in LISTENER_SETTINGS or name.startswith(LISTENER_PREFIX)


def parse_listeners(
    listeners: str, advertised: str | None, protocols: str, texts: Mapping[str, str]
) -> tuple[Listener, ...]:
    """Build the listeners from the texts of `listeners`, `advertised.listeners` and the protocol map.

    Args:
        texts: settings by dotted name; those that are not of listeners are ignored.

    Raises: BadConfig with all problems.
    """
    result, problems = read_listeners(listeners, advertised, protocols, texts)
    if problems:
        raise BadConfig("\n".join(problems))
    return result


def read_listeners(
    listeners: str, advertised: str | None, protocols: str, texts: Mapping[str, str]
) -> tuple[tuple[Listener, ...], list[str]]:
    """Return the listeners as far as they can be read, and every problem; arguments as for the one above."""
    problems: list[str] = []
    named = _parse_endpoints("listeners", listeners, problems)
    by_name = _parse_protocols(protocols, problems)
    advertised_at = _parse_advertised(advertised, named, problems)
    problems += _find_address_problems(named, advertised, advertised_at)
    problems += _find_prefix_problems(texts, named)
    problems += [
        f"listener.security.protocol.map: {name} is not in listeners, which has {', '.join(named) or 'none'}"
        for name in by_name
        if name not in named and name not in SecurityProtocol.__members__
    ]
    result = []
    for name, endpoint in named.items():
        if name not in by_name:
            problems.append(
                f"listeners: {name} is not in listener.security.protocol.map, which has {', '.join(by_name)}"
            )
            continue
        own = collect_listener_texts(name, texts)
        tls = _build(TlsSettings, own, name, problems)
        settings = _build(ListenerSettings, own, name, problems)
        listener = Listener(
            name=name,
            protocol=by_name[name],
            endpoint=endpoint,
            advertised=advertised_at.get(name),
            tls=tls,
            settings=settings,
            jaas=_collect_jaas(name, texts),
            oauth=_build(OauthSettings, own | _collect_mechanism(name, OAUTHBEARER, texts), name, problems),
            max_reauth=_collect_max_reauth(name, texts, problems),
            max_connections=_build(ListenerLimits, own, name, problems).max_connections,
        )
        problems += _find_rule_problems(listener)
        problems += [f"{problem} (listener {name})" for problem in find_mechanism_problems(listener)]
        result.append(listener)
    return tuple(result), list(dict.fromkeys(problems))


def collect_listener_texts(name: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of one listener by plain name: its own over those of all."""
    prefix = f"{LISTENER_PREFIX}{name.lower()}."
    own = {key.removeprefix(prefix): text for key, text in texts.items() if key.startswith(prefix)}
    return {key: text for key, text in texts.items() if key in LISTENER_SETTINGS} | own


def _collect_mechanism(name: str, mechanism: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with the prefix of a listener and a mechanism by plain name."""
    prefix = f"{LISTENER_PREFIX}{name.lower()}.{mechanism.lower()}."
    return {key.removeprefix(prefix): text for key, text in texts.items() if key.startswith(prefix)}


def _collect_max_reauth(name: str, texts: Mapping[str, str], problems: list[str]) -> dict[str, int]:
    limits = {}
    for mechanism in MECHANISMS:
        own = _collect_mechanism(name, mechanism, texts)
        if _MAX_REAUTH in own:
            only = {_MAX_REAUTH: own[_MAX_REAUTH]}
            limits[mechanism] = _build(ListenerSettings, only, name, problems).connections_max_reauth_ms
    return limits


def _collect_jaas(name: str, texts: Mapping[str, str]) -> dict[str, Secret]:
    jaas = {}
    for mechanism in MECHANISMS:
        text = texts.get(f"{LISTENER_PREFIX}{name.lower()}.{mechanism.lower()}.{JAAS}")
        if text is not None:
            jaas[mechanism] = Secret(text)
    return jaas


def find_mechanism_problems(listener: Listener) -> Iterator[str]:
    """Yield why clients could not log in at a listener."""
    if not listener.protocol.uses_sasl:
        return
    enabled = listener.settings.sasl_enabled_mechanisms
    if not enabled:
        yield f"sasl.enabled.mechanisms: name the mechanisms, of {', '.join(MECHANISMS)}"
    for mechanism in enabled:
        if mechanism not in MECHANISMS:
            yield f"sasl.enabled.mechanisms: {mechanism} is not supported, {', '.join(MECHANISMS)} is"
        elif mechanism == PLAIN:
            try:
                if not list_plain_users(listener.jaas.get(PLAIN)):
                    yield f'plain.{JAAS}: no user can log in: give options user_NAME="PASSWORD"'
            except BadJaasConfig as exc:
                yield f"plain.{JAAS}: {exc}"
        elif mechanism in SCRAM_MECHANISMS:
            yield from _find_scram_problems(mechanism, listener.jaas.get(mechanism))
        elif mechanism == OAUTHBEARER:
            yield from listener.oauth.find_problems(listener.jaas.get(OAUTHBEARER))


def _find_scram_problems(mechanism: str, jaas: Secret | None) -> Iterator[str]:
    """Yield what is wrong with a login module, which Kafka needs and which says nothing here."""
    if jaas is None:
        return
    where = f"{mechanism.lower()}.{JAAS}"
    try:
        module = parse_jaas_config(jaas.reveal()).module
    except BadJaasConfig as exc:
        yield f"{where}: {exc}"
        return
    if module is not LoginModule.SCRAM:
        yield f"{where}: {module.value} is not the login module of {mechanism}, {LoginModule.SCRAM.value} is"


def list_plain_users(jaas: Secret | None) -> dict[str, Secret]:
    """Return the password of each user in a sasl.jaas.config of PLAIN. Raises: BadJaasConfig.

    As in Kafka's PlainServerCallbackHandler: `user_alice="secret"`.
    """
    if jaas is None:
        return {}
    entry = parse_jaas_config(jaas.reveal())
    if entry.module is not LoginModule.PLAIN:
        raise BadJaasConfig(f"{entry.module.value} is not the login module of PLAIN, PlainLoginModule is")
    return {
        name.removeprefix(_USER): password
        for name, password in entry.options.items()
        if name.startswith(_USER) and name != _USER and password
    }


def _build(cls: type[C], texts: Mapping[str, str], listener: str, problems: list[str]) -> C:
    declared = list_settings(cls)
    values, wrong = parse_values(cls, {key: text for key, text in texts.items() if key in declared})
    settings = cls(**values)
    rules = getattr(settings, "problems", None)
    if rules is not None and not wrong:
        wrong = list(rules())
    problems += [f"{problem} (listener {listener})" for problem in wrong]
    return settings


def _find_rule_problems(listener: Listener) -> Iterator[str]:
    try:
        _ = listener.principal_rules
    except BadConfig as exc:
        yield f"{exc} (listener {listener.name})"


def _parse_endpoints(setting_name: str, text: str, problems: list[str]) -> dict[str, Endpoint]:
    endpoints: dict[str, Endpoint] = {}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        problems.append(f"{setting_name}: no listener is left")
    for part in parts:
        name, separator, address = part.rpartition("://")
        name = name.strip().upper() if separator else SecurityProtocol.PLAINTEXT.value
        try:
            endpoint = Endpoint.parse(address)
        except ValueError as exc:
            problems.append(f"{setting_name}: {exc}")
            continue
        if name in endpoints:
            problems.append(f"{setting_name}: there are two listeners named {name}")
        endpoints[name] = endpoint
    return endpoints


def _parse_advertised(
    text: str | None, named: Mapping[str, Endpoint], problems: list[str]
) -> dict[str, Endpoint]:
    if text is None:
        return {}
    if "://" not in text and len(named) == 1:
        text = f"{next(iter(named))}://{text}"
    endpoints = _parse_endpoints("advertised.listeners", text, problems)
    problems += [
        f"advertised.listeners: {name} is not in listeners, which has {', '.join(named) or 'none'}"
        for name in endpoints
        if name not in named
    ]
    return endpoints


def _parse_protocols(text: str, problems: list[str]) -> dict[str, SecurityProtocol]:
    protocols: dict[str, SecurityProtocol] = {}
    for part in text.split(","):
        name, colon, protocol = (piece.strip().upper() for piece in part.partition(":"))
        if not name and not colon:
            continue
        if protocol not in SecurityProtocol.__members__:
            allowed = ", ".join(SecurityProtocol.__members__)
            problems.append(
                f"listener.security.protocol.map: {part.strip()!r} is not NAME:PROTOCOL, with {allowed}"
            )
        elif protocols.setdefault(name, SecurityProtocol[protocol]) is not SecurityProtocol[protocol]:
            problems.append(f"listener.security.protocol.map: {name} is mapped twice")
    return protocols


def _find_address_problems(
    named: Mapping[str, Endpoint], advertised: str | None, advertised_at: Mapping[str, Endpoint]
) -> Iterator[str]:
    name_by_endpoint: dict[Endpoint, str] = {}
    for name, endpoint in named.items():
        if endpoint.port and name_by_endpoint.setdefault(endpoint, name) != name:
            yield f"listeners: {name_by_endpoint[endpoint]} and {name} are both at {endpoint}"
        if name in advertised_at and advertised_at[name].host in WILDCARD_HOSTS:
            yield (
                f"advertised.listeners: {name}://{advertised_at[name]} is "
                "no address a client could connect to"
            )
        if endpoint.host in WILDCARD_HOSTS and name not in advertised_at:
            yield (
                f"listeners: {name}://{endpoint} listens everywhere, and clients need one address: "
                "give --advertise HOST:PORT (advertised.listeners)"
            )


def _find_prefix_problems(texts: Mapping[str, str], named: Mapping[str, Endpoint]) -> Iterator[str]:
    for key, text in texts.items():
        if not key.startswith(LISTENER_PREFIX):
            continue
        name, _, plain = key.removeprefix(LISTENER_PREFIX).partition(".")
        if name != name.lower():
            yield f"{key}: the name of a listener is in lower case here"
        elif name.upper() not in named:
            yield f"{key}: there is no listener {name.upper()}, only {', '.join(named)}"
        elif _split_mechanism(plain) in (JAAS, _MAX_REAUTH):
            continue
        elif plain.startswith(_OAUTH_PREFIX):
            yield from _find_oauth_prefix_problems(key, plain.removeprefix(_OAUTH_PREFIX), text)
        elif plain == JAAS:
            yield f"{key}: name the mechanism, {LISTENER_PREFIX}{name}.plain.{JAAS}"
        elif plain not in LISTENER_SETTINGS and plain not in PREFIXED_SETTINGS:
            settings = LISTENER_SETTINGS | PREFIXED_SETTINGS
            yield f"{LISTENER_PREFIX}{name}.{describe_unknown(plain, settings)}"


def _split_mechanism(plain: str) -> str | None:
    """Return what follows the name of a mechanism in lower case, None without one."""
    mechanism, _, rest = plain.partition(".")
    return rest if mechanism.islower() and mechanism.upper() in MECHANISMS else None


def _find_oauth_prefix_problems(key: str, plain: str, text: str) -> Iterator[str]:
    if plain == CALLBACK_HANDLER:
        problem = find_handler_problem(text)
        if problem is not None:
            yield f"{key}: {problem}"
    elif plain not in _OAUTH_SETTINGS:
        yield f"{key.removesuffix(plain)}{describe_unknown(plain, _OAUTH_SETTINGS)}"
