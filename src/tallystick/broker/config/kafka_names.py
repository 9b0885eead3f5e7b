"""Kafka's broker settings that this broker lacks: names accepted without effect, and names refused.

They are in `kafka_names.tsv`; together with BrokerConfig this is every name of Kafka 4.3.1. A setting that
promises something to users or operators (authentication, quotas, where data goes) must not be accepted
silently when nothing here keeps the promise; a setting that tunes a missing component is harmless.

Source: tests/vectors/config/kafka-4.3.1-configs.txt, printed by Kafka's own classes.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from tallystick.broker.config.listeners import is_listener_setting
from tallystick.kernel.foreign_settings import ForeignSettings
from tallystick.kernel.secret import HIDDEN

_TABLE: Final = ForeignSettings(__package__)

# Among these are names of Kafka 3 and of early releases of 4 that are still found in configuration files.
INEFFECTIVE_SETTINGS: Final = _TABLE.ineffective
# The one value that is accepted is Kafka's default, which requests nothing.
REFUSED_SETTINGS: Final = _TABLE.refusals
# Beginnings of names that are not listed: settings of later Kafka versions, or of one listener.
REFUSED_PREFIXES: Final = _TABLE.refused_prefixes

# What is refused must not be shown either, in the log of a start.
_SECRET_WORDS: Final = ("jaas", "passphrase", "password", "secret")


def is_refused(name: str) -> bool:
    """Return whether this is Kafka's name for a missing feature whose absence matters."""
    return name in REFUSED_SETTINGS or (
        name not in INEFFECTIVE_SETTINGS
        and not is_listener_setting(name)
        and name.startswith(tuple(REFUSED_PREFIXES))
    )


def is_kafka_name(name: str) -> bool:
    """Return whether this is Kafka's name for a feature that one broker without security does not have."""
    return name in INEFFECTIVE_SETTINGS or is_refused(name)


def iter_problems(originals: Mapping[str, str]) -> Iterator[str]:
    """Yield the problem of each setting in `originals` that asks for an unsupported feature."""
    for name, text in originals.items():
        if name in REFUSED_SETTINGS:
            setting = REFUSED_SETTINGS[name]
            if text.strip() not in setting.allowed:
                (default,) = setting.allowed
                value_text = HIDDEN if any(word in name for word in _SECRET_WORDS) else repr(text)
                yield f"{name}: {value_text} is not supported, only {default!r}: {setting.reason}"
        elif is_refused(name):
            for prefix, reason in REFUSED_PREFIXES.items():
                if name.startswith(prefix):
                    yield f"{name}: not supported: {reason}"
