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

# Those that Kafka changes while it runs, with their types and defaults.
_CHANGEABLE_LINES: Final = """
    background.threads INT 10
    follower.fetch.last.tiered.offset.enable BOOLEAN false
    group.consumer.assignment.interval.ms INT 1000
    group.coordinator.cached.buffer.max.bytes INT 1048588
    group.share.assignment.interval.ms INT 1000
    group.streams.assignment.interval.ms INT 1000
    log.cleaner.io.buffer.load.factor DOUBLE 0.9
    log.cleaner.io.buffer.size INT 524288
    log.cleaner.io.max.bytes.per.second DOUBLE 1.7976931348623157E308
    log.cleaner.threads INT 1
    metric.reporters LIST org.apache.kafka.common.metrics.JmxReporter
    num.io.threads INT 8
    num.network.threads INT 3
    num.recovery.threads.per.data.dir INT 2
    num.replica.fetchers INT 1
    remote.fetch.max.wait.ms INT 500
    remote.list.offsets.request.timeout.ms LONG 30000
    remote.log.index.file.cache.total.size.bytes LONG 1073741824
    remote.log.manager.copier.thread.pool.size INT 10
    remote.log.manager.copy.max.bytes.per.second LONG 9223372036854775807
    remote.log.manager.expiration.thread.pool.size INT 10
    remote.log.manager.fetch.max.bytes.per.second LONG 9223372036854775807
    remote.log.manager.follower.thread.pool.size INT 2
    remote.log.reader.threads INT 10
    sasl.kerberos.kinit.cmd STRING /usr/bin/kinit
    sasl.kerberos.min.time.before.relogin LONG 60000
    sasl.kerberos.principal.to.local.rules LIST DEFAULT
    sasl.kerberos.service.name STRING
    sasl.kerberos.ticket.renew.jitter DOUBLE 0.05
    sasl.kerberos.ticket.renew.window.factor DOUBLE 0.8
    sasl.login.refresh.buffer.seconds INT 300
    sasl.login.refresh.min.period.seconds INT 60
    sasl.login.refresh.window.factor DOUBLE 0.8
    sasl.login.refresh.window.jitter DOUBLE 0.05
    share.coordinator.cached.buffer.max.bytes INT 1048588
"""
CHANGEABLE_INEFFECTIVE_SETTINGS: Final[Mapping[str, tuple[str, str]]] = {
    words[0]: (words[1], "".join(words[2:]))
    for words in map(str.split, _CHANGEABLE_LINES.strip().split("\n"))
}

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
