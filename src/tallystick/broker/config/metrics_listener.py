"""The address of /metrics, its TLS and who may read it.

`metrics.listener` is HOST:PORT or http://HOST:PORT, or https://HOST:PORT for TLS. Its keys are those of
`metrics.ssl.<setting>`, and what is not set there is that of `ssl.<setting>`: the same rule as with
`listener.name.<name>.ssl.<setting>`.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.config.listeners import LISTENER_SETTINGS, Listener, ListenerSettings
from tallystick.kernel.settings import BadConfig, Setting, list_settings, parse_values
from tallystick.kernel.value import Value, replace
from tallystick.security.http_credentials import CredentialFiles
from tallystick.security.protocol import SecurityProtocol
from tallystick.security.tls.settings import TlsSettings

C = TypeVar("C")

# In lower case, which no listener of Kafka's protocol has.
METRICS: Final = "metrics"
METRICS_PREFIX: Final = "metrics."
AUTH_PREFIX: Final = "metrics.auth."
_SCHEMES: Final = {
    "": SecurityProtocol.PLAINTEXT,
    "http": SecurityProtocol.PLAINTEXT,
    "https": SecurityProtocol.SSL,
}

# By the names without `metrics.`. A reader of metrics has no principal.
_OWN_SETTINGS: Final[Mapping[str, Setting]] = {
    name: setting
    for name, setting in LISTENER_SETTINGS.items()
    if name.startswith("ssl.") and name != "ssl.principal.mapping.rules"
}


class MetricsListener(Value):
    """The listener of /metrics, and the files with what lets a request in."""

    listener: Listener
    credentials: CredentialFiles

    @property
    def is_open_to_the_network(self) -> bool:
        """Whether everyone who reaches it reads the metrics, from other machines too."""
        tls = self.listener.tls
        knows_client = self.credentials.are_given or (
            self.listener.protocol.uses_tls and tls.ssl_client_auth == "required"
        )
        return not knows_client and not self.listener.endpoint.is_loopback


def find_metrics_setting(name: str) -> Setting | None:
    """Return the setting behind `metrics.ssl.<setting>`, with its whole name; None for another name."""
    plain = name.removeprefix(METRICS_PREFIX)
    setting = _OWN_SETTINGS.get(plain) if plain != name else None
    return None if setting is None else replace(setting, name=name)


def parse_metrics_listener(
    text: str, credentials: CredentialFiles, texts: Mapping[str, str]
) -> MetricsListener:
    """Build the listener of /metrics.

    Args:
        texts: settings by dotted name; those that are not of TLS are ignored.

    Raises: BadConfig with all problems.
    """
    problems = credentials.find_problems()
    scheme, _, address = text.rpartition("://")
    endpoint = Endpoint("", 0)
    try:
        endpoint = Endpoint.parse(address)
    except ValueError as exc:
        problems.append(f"metrics.listener: {exc}")
    if scheme not in _SCHEMES:
        problems.append(f"metrics.listener: {scheme}:// is neither http:// nor https://")
    own = {name: texts[name] for name in _OWN_SETTINGS if name in texts} | {
        name: texts[METRICS_PREFIX + name] for name in _OWN_SETTINGS if METRICS_PREFIX + name in texts
    }
    protocol = _SCHEMES.get(scheme, SecurityProtocol.PLAINTEXT)
    tls = _build_part(TlsSettings, own, problems)
    settings = _build_part(ListenerSettings, own, problems)
    if protocol.uses_tls:
        problems += [f"{problem} (metrics.listener)" for problem in tls.problems()]
    if problems:
        raise BadConfig("\n".join(problems))
    listener = Listener(name=METRICS, protocol=protocol, endpoint=endpoint, tls=tls, settings=settings)
    return MetricsListener(listener, credentials)


def _build_part(cls: type[C], texts: Mapping[str, str], problems: list[str]) -> C:
    declared = list_settings(cls)
    values, wrong = parse_values(cls, {key: text for key, text in texts.items() if key in declared})
    problems += [f"{problem} (metrics.listener)" for problem in wrong]
    return cls(**values)
