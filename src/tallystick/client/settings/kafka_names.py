"""Settings of other clients that this one lacks: accepted without effect, or refused with a reason.

They are in `kafka_names.tsv`; together with `config.py` these are all names of Kafka 4.3.1's producer,
consumer and admin client, and the commonly used ones of librdkafka. A setting that only tunes a missing
feature is harmless. A setting that promises something (authentication, ordering, a callback) is refused,
unless it asks for the behaviour that this client has anyway.

Sources: tests/vectors/config/kafka-4.3.1-client-configs.txt; librdkafka CONFIGURATION.md.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Final

from tallystick.kernel.foreign_settings import ForeignSettings
from tallystick.kernel.secret import HIDDEN

_TABLE: Final = ForeignSettings(__package__)

# kafka-python's names are among these as far as they concern security. The new name wins if both are given.
RENAMED_SETTINGS: Final = _TABLE.aliases
INEFFECTIVE_SETTINGS: Final = _TABLE.ineffective
REFUSED_SETTINGS: Final = _TABLE.refusals
REFUSED_PREFIXES: Final = _TABLE.refused_prefixes

FUNCTION_SETTINGS: Final[Mapping[str, str]] = {
    "key.deserializer": "consumer",
    "key.serializer": "producer",
    "value.deserializer": "consumer",
    "value.serializer": "producer",
}
"""Settings whose value is a function, as in confluent-kafka, and the client that takes it."""

_SECRETIVE_PREFIXES: Final = ("sasl", "ssl", "oauth")

# partition.assignment.strategy: Java's classes, and librdkafka's names for them, which are used here.
ASSIGNOR_BY_JAVA_CLASS: Final[Mapping[str, str]] = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
_ASSIGNOR_PACKAGE: Final = "org.apache.kafka.clients.consumer."


class ClientSettings(dict[str, str]):
    """Settings of a client as texts, which print without what may be a secret."""

    def __repr__(self) -> str:
        printable = {
            name: HIDDEN if name.startswith(_SECRETIVE_PREFIXES) else text for name, text in self.items()
        }
        return f"ClientSettings({printable})"


def shorten_assignor_name(text: str) -> str:
    """Return the short name of an assignor given as a Java class; any other text unchanged."""
    class_name = text.strip().removeprefix("class ").removeprefix(_ASSIGNOR_PACKAGE)
    return ASSIGNOR_BY_JAVA_CLASS.get(class_name, text.strip())


def is_refused(name: str) -> bool:
    """Return whether this is another client's setting that this one refuses."""
    return name in REFUSED_SETTINGS or name.startswith(tuple(REFUSED_PREFIXES))


def find_refused_settings(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield the problem of each setting of `settings` that asks for missing behaviour."""
    for name, text in settings.items():
        if name in REFUSED_SETTINGS:
            setting = REFUSED_SETTINGS[name]
            if text.strip() not in setting.allowed:
                # Values of security settings may be secrets, or have one in them.
                quote = "" if name.startswith(_SECRETIVE_PREFIXES) else f"{text!r} is "
                yield f"{name}: {quote}not supported: {setting.reason}"
        else:
            for prefix, why in REFUSED_PREFIXES.items():
                if name.startswith(prefix):
                    yield f"{name}: not supported: {why}"


def find_function_problems(functions: Mapping[str, object], role: str) -> Iterator[str]:
    """Yield the problem of each function that this client does not take, or that would have to be awaited."""
    for name, function in functions.items():
        if FUNCTION_SETTINGS[name] != role:
            yield f"{name}: a setting of {FUNCTION_SETTINGS[name]}, this is {role}"
        elif inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            yield f"{name}: is a coroutine function, and must be a plain one, which may wait"
