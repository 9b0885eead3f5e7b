"""Kafka's broker settings that this broker lacks: names accepted without effect, and names refused.

Together with BrokerConfig this is every name of Kafka 4.3.1. A setting that promises something to users or
operators (authentication, quotas, where data goes) must not be accepted silently when nothing here keeps the
promise; a setting that tunes a missing component is harmless.

Source: tests/vectors/config/kafka-4.3.1-configs.txt, printed by Kafka's own classes.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from tallystick.broker.config.listeners import is_listener_setting
from tallystick.kernel.secret import HIDDEN

# Quorum, replication, share and streams groups, thread pools, the tuning of tiered storage and of logins.
_INEFFECTIVE_NAMES: Final = """
    add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
    alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
    auto.leader.rebalance.enable background.threads broker.heartbeat.interval.ms broker.session.timeout.ms
    controlled.shutdown.enable controller.performance.always.log.threshold.ms
    controller.performance.sample.period.ms controller.quorum.append.linger.ms
    controller.quorum.auto.join.enable controller.quorum.bootstrap.servers
    controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
    controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes
    controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms
    controller.quorum.retry.backoff.ms controller.quorum.voters controller.quota.window.num
    controller.quota.window.size.seconds controller.socket.timeout.ms
    delete.records.purgatory.purge.interval.requests fetch.purgatory.purge.interval.requests
    follower.fetch.last.tiered.offset.enable group.consumer.assignment.interval.ms
    group.consumer.assignors group.consumer.heartbeat.interval.ms
    group.consumer.max.assignment.interval.ms group.consumer.max.heartbeat.interval.ms
    group.consumer.max.session.timeout.ms group.consumer.max.size group.consumer.migration.policy
    group.consumer.min.assignment.interval.ms group.consumer.min.heartbeat.interval.ms
    group.consumer.min.session.timeout.ms group.consumer.regex.refresh.interval.ms
    group.consumer.session.timeout.ms group.coordinator.append.linger.ms
    group.coordinator.background.threads group.coordinator.cached.buffer.max.bytes
    group.coordinator.rebalance.protocols group.coordinator.threads group.share.assignment.interval.ms
    group.share.assignors group.share.delivery.count.limit group.share.heartbeat.interval.ms
    group.share.initialize.retry.interval.ms group.share.max.assignment.interval.ms
    group.share.max.delivery.count.limit group.share.max.heartbeat.interval.ms
    group.share.max.partition.max.record.locks group.share.max.record.lock.duration.ms
    group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
    group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
    group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
    group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
    group.share.partition.max.record.locks group.share.persister.class.name
    group.share.record.lock.duration.ms group.share.session.timeout.ms
    group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
    group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
    group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
    group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
    group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
    group.streams.num.standby.replicas group.streams.session.timeout.ms
    initial.broker.registration.timeout.ms inter.broker.listener.name security.inter.broker.protocol
    early.start.listeners
    internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
    internal.metadata.max.batch.size.in.bytes kafka.metrics.polling.interval.secs kafka.metrics.reporters
    leader.imbalance.check.interval.seconds
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
    log.cleaner.threads log.dir.failure.timeout.ms log.flush.scheduler.interval.ms
    log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms metadata.log.dir
    metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
    metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms
    metadata.max.retention.bytes metadata.max.retention.ms metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms num.io.threads num.network.threads
    num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads num.replica.fetchers
    offsets.commit.timeout.ms offsets.load.buffer.size offsets.topic.compression.codec
    offsets.topic.replication.factor process.roles producer.purgatory.purge.interval.requests
    queued.max.requests quota.window.num quota.window.size.seconds remote.fetch.max.wait.ms
    remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
    remote.log.index.file.cache.ttl.ms remote.log.manager.copier.thread.pool.size
    remote.log.manager.copy.max.bytes.per.second remote.log.manager.copy.quota.window.num
    remote.log.manager.copy.quota.window.size.seconds remote.log.manager.expiration.thread.pool.size
    remote.log.manager.fetch.max.bytes.per.second remote.log.manager.fetch.quota.window.num
    remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.follower.thread.pool.size
    remote.log.manager.task.interval.ms remote.log.manager.task.retry.backoff.max.ms
    remote.log.manager.task.retry.backoff.ms remote.log.manager.task.retry.jitter
    remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
    remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
    remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
    remote.log.reader.max.pending.tasks remote.log.reader.threads remote.log.storage.manager.class.name
    remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix replica.fetch.backoff.ms
    replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.response.max.bytes
    replica.fetch.wait.max.ms replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms
    replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
    replication.quota.window.size.seconds server.max.startup.time.ms share.coordinator.append.linger.ms
    share.coordinator.cached.buffer.max.bytes share.coordinator.cold.partition.snapshot.interval.ms
    share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
    share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
    share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
    share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
    share.coordinator.threads share.coordinator.write.timeout.ms
    share.fetch.purgatory.purge.interval.requests socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms socket.receive.buffer.bytes socket.send.buffer.bytes
    telemetry.max.bytes transaction.state.log.load.buffer.size transaction.state.log.min.isr
    transaction.state.log.replication.factor unclean.leader.election.interval.ms unstable.api.versions.enable
    unstable.feature.versions.enable
    delegation.token.expiry.check.interval.ms sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules
    sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
    sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    sasl.login.refresh.window.factor sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms
    sasl.login.retry.backoff.ms
"""

# Names of Kafka 3 and of early releases of 4 that are still found in configuration files.
REMOVED_SETTINGS: Final = frozenset(
    {
        "group.share.enable",
        "inter.broker.protocol.version",
        "leader.imbalance.per.broker.percentage",
        "log.message.format.version",
    }
)

INEFFECTIVE_SETTINGS: Final = REMOVED_SETTINGS | frozenset(_INEFFECTIVE_NAMES.split())

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

_SECURITY: Final = "clients log in with TLS certificates and SASL PLAIN, SCRAM or OAUTHBEARER only"
_PLUGIN: Final = "this broker loads no Java classes"
_TIERED: Final = "there is no tiered storage"
_QUOTA: Final = "connections are limited only in number: max.connections, max.connections.per.ip"

# Encryption, authentication, delegation tokens: each name with Kafka's default, which may be empty.
_SECURITY_DEFAULTS: Final = """
    delegation.token.expiry.time.ms 86400000
    delegation.token.max.lifetime.ms 604800000
    delegation.token.secret.key
    sasl.client.callback.handler.class
    sasl.jaas.config
    sasl.login.callback.handler.class
    sasl.login.class
    sasl.mechanism.controller.protocol GSSAPI
    sasl.mechanism.inter.broker.protocol GSSAPI
    sasl.oauthbearer.assertion.algorithm RS256
    sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds 300
    sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include false
    sasl.oauthbearer.assertion.claim.nbf.seconds 60
    sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.jwt.retriever.class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
    sasl.oauthbearer.jwt.validator.class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
    sasl.oauthbearer.scope
    sasl.oauthbearer.token.endpoint.url
    sasl.server.callback.handler.class
    ssl.engine.factory.class
    ssl.keymanager.algorithm SunX509
    ssl.provider
    ssl.secure.random.implementation
    ssl.trustmanager.algorithm PKIX
"""

# Refused unless the text is Kafka's default, which requests nothing.
REFUSED_SETTINGS: Final[Mapping[str, tuple[str, str]]] = {
    "alter.config.policy.class.name": ("", _PLUGIN),
    "client.quota.callback.class": ("", _PLUGIN),
    "config.providers": ("", "values are used as written"),
    "cordoned.log.dirs": ("", "there is one data directory"),
    "create.topic.policy.class.name": ("", _PLUGIN),
    "log.local.retention.bytes": ("-2", _TIERED),
    "log.local.retention.ms": ("-2", _TIERED),
    "max.connection.creation.rate": ("2147483647", _QUOTA),
    "principal.builder.class": (
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        _SECURITY,
    ),
    "remote.log.storage.system.enable": ("false", _TIERED),
    "replica.selector.class": ("", _PLUGIN),
    "security.providers": ("", _SECURITY),
    **{
        name: (default, _SECURITY)
        for name, _, default in (line.strip().partition(" ") for line in _SECURITY_DEFAULTS.split("\n"))
        if name
    },
    # Kafka ignores it with a warning.
    "sasl.jaas.config": (
        "",
        "name the listener and the mechanism, listener.name.NAME.plain.sasl.jaas.config",
    ),
}
# What is refused must not be shown either, in the log of a start.
_SECRET_WORDS: Final = ("jaas", "passphrase", "password", "secret")

# Names in none of the tables above: settings of later Kafka versions, or of one listener.
REFUSED_PREFIXES: Final[Mapping[str, str]] = {
    "delegation.token.": _SECURITY,
    "sasl.": _SECURITY,
    "ssl.": _SECURITY,
}


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
    """Yield the problem of each setting in `given` that asks for an unsupported feature."""
    for name, text in originals.items():
        if name in REFUSED_SETTINGS:
            default, reason = REFUSED_SETTINGS[name]
            if text.strip() != default:
                value_text = HIDDEN if any(word in name for word in _SECRET_WORDS) else repr(text)
                yield f"{name}: {value_text} is not supported, only {default!r}: {reason}"
        elif is_refused(name):
            for prefix, reason in REFUSED_PREFIXES.items():
                if name.startswith(prefix):
                    yield f"{name}: not supported: {reason}"
