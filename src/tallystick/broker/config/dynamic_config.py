"""Settings that are changed while the broker runs: which may be, for which broker, and how they are layered.

A key store is changed for one listener of one broker, `listener.name.<name>.ssl.keystore.location`; other
dynamic settings, `listener.name.<name>.max.connections` among them, for one broker or for all.

Source: Kafka's DynamicBrokerConfig; KIP-226.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tallystick.broker.config.broker_config import BROKER_SETTINGS, BrokerConfig
from tallystick.broker.config.kafka_names import CHANGEABLE_INEFFECTIVE_SETTINGS, INEFFECTIVE_SETTINGS
from tallystick.broker.config.listeners import (
    JAAS,
    LISTENER_PREFIX,
    LISTENER_SETTINGS,
    PREFIXED_SETTINGS,
)
from tallystick.broker.config.metrics_listener import METRICS_PREFIX, find_metrics_setting
from tallystick.kernel.settings import Setting, SettingType, list_settings
from tallystick.kernel.value import Value, replace
from tallystick.security.tls.settings import TlsSettings

# Source: SslConfigs.RECONFIGURABLE_CONFIGS; the two of a key in files of their own are not Java's.
_KEYS: Final = ("ssl.key.", "ssl.keystore.", "ssl.truststore.", "ssl.certificate.")
RECONFIGURABLE_SETTINGS: Final = frozenset(
    name for name in list_settings(TlsSettings) if name.startswith(_KEYS)
)

_PLAIN_USERS: Final = f".plain.{JAAS}"
_JAAS_SETTING: Final = Setting(kind=SettingType.PASSWORD, default=None, doc="", none="")


def _make_ineffective(name: str, kind: SettingType, default: str) -> Setting:
    setting = Setting(
        name=name, kind=kind, default=None, doc="Accepted, without effect.", none="", dynamic=True
    )
    return replace(setting, default=setting.parse(default), none=None if default else "")


INEFFECTIVE_DYNAMIC: Final[Mapping[str, Setting]] = {
    name: _make_ineffective(name, SettingType[kind], default)
    for name, (kind, default) in CHANGEABLE_INEFFECTIVE_SETTINGS.items()
}
"""Kafka's settings that change nothing here: accepted with a warning, as in the configuration file."""


def find_setting(name: str) -> Setting | None:
    """Return the setting of a name, with or without the prefix of a listener; None if it is unknown."""
    declared = BROKER_SETTINGS.get(name) or INEFFECTIVE_DYNAMIC.get(name) or find_metrics_setting(name)
    if declared is not None:
        return declared
    listener, plain = split_listener_name(name)
    if listener is None:
        return None
    if plain.endswith(JAAS):
        return replace(_JAAS_SETTING, name=name)
    setting = LISTENER_SETTINGS.get(plain) or PREFIXED_SETTINGS.get(plain)
    if setting is None:
        return None
    return replace(setting, name=name, dynamic=setting.dynamic or plain in RECONFIGURABLE_SETTINGS)


def split_listener_name(name: str) -> tuple[str | None, str]:
    """Return the listener, in upper case, and the plain setting of `listener.name.<name>.<setting>`."""
    if not name.startswith(LISTENER_PREFIX):
        return None, name
    listener, _, plain = name.removeprefix(LISTENER_PREFIX).partition(".")
    return listener.upper(), plain


def list_undeclared(layers: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the names in the layers that are of one listener, or without effect, each once."""
    prefixes = (LISTENER_PREFIX, METRICS_PREFIX)
    names = {
        name for layer in layers for name in layer if name.startswith(prefixes) or name in INEFFECTIVE_DYNAMIC
    }
    return sorted(names - BROKER_SETTINGS.keys())


def find_change_problems(configs: Mapping[str, str], *, is_default: bool) -> Iterator[str]:
    """Yield why settings cannot be changed while the broker runs.

    Args:
        is_default: they are for all brokers and not for one.
    """
    specs = {name: find_setting(name) for name in configs}
    unprefixed = sorted(RECONFIGURABLE_SETTINGS & specs.keys())
    if unprefixed:
        yield (
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"{', '.join(unprefixed)}"
        )
    fixed = [n for n, spec in specs.items() if not (spec and spec.dynamic) and n not in unprefixed]
    if fixed:
        yield (
            f"cannot be changed while the broker runs: {', '.join(fixed)}; set them in its configuration and "
            "restart"
        )
    own = sorted(
        n
        for n in specs
        if n not in unprefixed
        and (
            split_listener_name(n)[1] in RECONFIGURABLE_SETTINGS
            or (n in INEFFECTIVE_DYNAMIC and n.startswith("sasl."))
        )
    )
    if is_default and own:
        yield (
            "Cannot update these configs at default cluster level, broker id must be specified: "
            f"{', '.join(own)}"
        )


def find_bad_values(configs: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the texts of settings without effect; nothing else parses them."""
    for name, text in configs.items():
        if name in INEFFECTIVE_DYNAMIC:
            try:
                INEFFECTIVE_DYNAMIC[name].parse(text)
            except ValueError as exc:
                yield f"{name}: {exc}"


def build_effective_config(
    static: BrokerConfig, dynamic: Mapping[str, Mapping[str, str]]
) -> tuple[BrokerConfig, list[str]]:
    """Return the configuration in force, and the dynamic settings whose listeners are gone.

    Those are stored and without effect: a listener can be removed from a configuration although its keys
    were changed while it was there.

    Args:
        dynamic: settings by broker id as text; the empty text is for all brokers.

    Raises: BadConfig.
    """
    listeners = {each.name for each in static.make_listeners()}
    texts, orphans = dict(static.originals), list[str]()
    for broker in ("", str(static.node_id)):
        for name, text in dynamic.get(broker, {}).items():
            listener, _ = split_listener_name(name)
            if listener is None or listener in listeners:
                texts[name] = text
            else:
                orphans.append(name)
    return BrokerConfig.parse(texts), orphans


class RereadConfig(Value, kw_only=True):
    """A configuration that was read again while the broker runs.

    static    the running one, with those of its changes that can be made now
    changed   names of these
    waiting   names of the others, which wait for a restart
    """

    static: BrokerConfig
    changed: tuple[str, ...]
    waiting: tuple[str, ...]


def merge_reread(running: BrokerConfig, read: BrokerConfig) -> RereadConfig:
    """Return the running configuration with what another one changes and a running broker can change.

    That is what AlterConfigs may change, with the keys of all listeners and the users of PLAIN.
    Raises: BadConfig.
    """
    texts, others = dict(running.originals), read.originals
    differing = sorted(name for name in texts.keys() | others.keys() if texts.get(name) != others.get(name))
    changed = [name for name in differing if _is_changeable(name)]
    for name in changed:
        if name in others:
            texts[name] = others[name]
        else:
            del texts[name]
    return RereadConfig(
        static=BrokerConfig.parse(texts),
        changed=tuple(changed),
        waiting=tuple(name for name in differing if name not in changed and name not in INEFFECTIVE_SETTINGS),
    )


def _is_changeable(name: str) -> bool:
    declared = find_setting(name)
    return (
        name in RECONFIGURABLE_SETTINGS
        or name.endswith(_PLAIN_USERS)
        or (declared is not None and declared.dynamic)
    )
