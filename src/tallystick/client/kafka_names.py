"""Settings of other clients that this one lacks: accepted without effect, or refused with a reason.

Together with `config.py` these are all names of Kafka 4.3.1's producer, consumer and admin client, and the
commonly used ones of librdkafka. A setting that only tunes a missing feature is harmless. A setting that
promises something (authentication, ordering, a callback) is refused, unless it asks for the behaviour that
this client has anyway.

Sources: tests/vectors/config/kafka-4.3.1-client-configs.txt; librdkafka CONFIGURATION.md.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Final

from tallystick.kernel.secret import HIDDEN

# `metadata.recovery.rebootstrap.trigger.ms` is among those without effect: bootstrap.servers are asked as
# soon as no known broker answers, not after a time.

# Names of librdkafka and kafka-python, or older ones of Kafka, and their names here; the new name wins if
# both are given. kafka-python's are here as far as they concern security.
RENAMED_SETTINGS: Final[Mapping[str, str]] = {
    "api.version.request.timeout.ms": "request.timeout.ms",
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.max.bytes": "max.request.size",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_password": "sasl.password",
    "sasl_plain_username": "sasl.username",
    "security_protocol": "security.protocol",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl_cafile": "ssl.truststore.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
}

_INEFFECTIVE_NAMES: Final = """
    api.version.fallback.ms api.version.request batch.num.messages broker.address.family broker.address.ttl
    broker.version.fallback client.dns.lookup compression.level connections.max.reauth.ms
    consume.callback.max.messages debug enable.metrics.push enable.sparse.connections
    fetch.error.backoff.ms fetch.queue.backoff.ms internal.termination.signal
    internal.throw.on.fetch.stable.offset.unsupported log.connection.close log.queue log.thread.name
    log_level max.poll.interval.records message.copy.max.bytes
    metadata.recovery.rebootstrap.trigger.ms metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms offset.store.method
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
    queue.buffering.backpressure.threshold
    queued.max.messages.kbytes queued.min.messages
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    share.acknowledgement.mode share.acquire.mode
    socket.blocking.max.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
    ssl.keymanager.algorithm ssl.secure.random.implementation ssl.trustmanager.algorithm
    statistics.interval.ms
    topic.metadata.propagation.max.ms topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.sparse
"""
INEFFECTIVE_SETTINGS: Final = frozenset(_INEFFECTIVE_NAMES.split())

_OPENSSL_REASON: Final = (
    "Python's ssl does not let a client choose it; make an ssl.SSLContext and pass ssl_context"
)
_ASSERTION_REASON: Final = "a token is had for a client's secret, or from a function passed as oauth_cb"
_UNSECURED_REASON: Final = "tokens without a signature are not made here: pass a function as oauth_cb"
_OAUTH_CLASS: Final = "org.apache.kafka.common.security.oauthbearer"
_SERIALIZER_REASON: Final = "pass a function of an object and a context that returns bytes"
_DESERIALIZER_REASON: Final = "pass a function of bytes and a context that returns an object"
_BUILDER_REASON: Final = "build the serializer or deserializer, and pass it without .builder"
_CLASSES_REASON: Final = "no Java classes are loaded"
_CALLBACK_REASON: Final = "pass callbacks to the methods that use them"
_BYTE_ARRAY_CLASS: Final = "org.apache.kafka.common.serialization.ByteArray"

FUNCTION_SETTINGS: Final[Mapping[str, str]] = {
    "key.deserializer": "consumer",
    "key.serializer": "producer",
    "value.deserializer": "consumer",
    "value.serializer": "producer",
}
"""Settings whose value is a function, as in confluent-kafka, and the client that takes it."""

# Refused unless the value is one of these, which ask for the existing behaviour.
REFUSED_SETTINGS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "background_event_cb": ((), _CALLBACK_REASON),
    "bootstrap.controllers": (("",), "only brokers are contacted: use bootstrap.servers"),
    "config.providers": (("",), "values are used as written"),
    "connect_cb": ((), _CALLBACK_REASON),
    "consume_cb": ((), _CALLBACK_REASON),
    "delivery.report.only.error": (("false",), "every delivery is reported"),
    "dr_cb": ((), _CALLBACK_REASON),
    "dr_msg_cb": ((), _CALLBACK_REASON),
    "enable.auto.offset.store": (("true",), "commit explicit offsets: commit(offsets)"),
    "enable.gapless.guarantee": (
        ("false",),
        "a failed record fails its future and the producer continues; a transaction must be aborted",
    ),
    "enable.partition.eof": (("false",), "compare position() with end_offsets()"),
    "enable.sasl.oauthbearer.unsecure.jwt": (("false",), _UNSECURED_REASON),
    "enable.ssl.certificate.verification": (
        ("true",),
        "a peer that is not known is not worth encrypting for: name its CA in ssl.truststore.location",
    ),
    "error_cb": ((), _CALLBACK_REASON),
    "group.protocol": (("classic",), "only the classic protocol is supported"),
    "group.remote.assignor": ((), "partitions are assigned by the members, not by the broker"),
    "interceptor.classes": (("",), _CLASSES_REASON),
    "key.deserializer": ((f"{_BYTE_ARRAY_CLASS}Deserializer",), _DESERIALIZER_REASON),
    "key.deserializer.builder": ((), _BUILDER_REASON),
    "key.serializer": ((f"{_BYTE_ARRAY_CLASS}Serializer",), _SERIALIZER_REASON),
    "key.serializer.builder": ((), _BUILDER_REASON),
    "log_cb": ((), "Python's logging is used: logger tallystick.client"),
    "logger": ((), "Python's logging is used: logger tallystick.client"),
    "offset_commit_cb": ((), _CALLBACK_REASON),
    "on_delivery": ((), "pass on_delivery to send()"),
    "partitioner": (
        ("murmur2", "murmur2_random"),
        "keys decide as in Kafka's default partitioner; to choose, pass a partition to send()",
    ),
    "partitioner.class": ((), "pass a partition to send()"),
    "queue.buffering.max.kbytes": ((), "use buffer.memory, in bytes"),
    "queue.buffering.max.messages": ((), "use buffer.memory, in bytes"),
    "rebalance_cb": ((), "pass on_assign and on_revoke to subscribe()"),
    "sasl.client.callback.handler.class": (("",), _CLASSES_REASON),
    "sasl.login.callback.handler.class": (
        ("", f"{_OAUTH_CLASS}.OAuthBearerLoginCallbackHandler"),
        f"{_CLASSES_REASON}: pass a function as oauth_cb",
    ),
    "sasl.login.class": (("",), _CLASSES_REASON),
    "sasl.oauthbearer.config": (("",), _UNSECURED_REASON),
    "sasl.oauthbearer.grant.type": (("client_credentials",), _ASSERTION_REASON),
    "sasl.oauthbearer.jwt.retriever.class": (
        (f"{_OAUTH_CLASS}.DefaultJwtRetriever", f"{_OAUTH_CLASS}.ClientCredentialsJwtRetriever"),
        _CLASSES_REASON,
    ),
    "sasl.oauthbearer.jwt.validator.class": (
        (f"{_OAUTH_CLASS}.DefaultJwtValidator", f"{_OAUTH_CLASS}.ClientJwtValidator"),
        _CLASSES_REASON,
    ),
    "sasl.oauthbearer.metadata.authentication.type": (("none",), "pass a function as oauth_cb"),
    "sasl.oauthbearer.method": (("default", "oidc"), "only default and oidc are known"),
    "security.providers": (("",), _CLASSES_REASON),
    "ssl.crl.location": (("",), _OPENSSL_REASON),
    "ssl.curves.list": (("",), _OPENSSL_REASON),
    "ssl.engine.factory.class": (("",), _CLASSES_REASON),
    "ssl.provider": (("",), _CLASSES_REASON),
    "ssl.providers": (("default",), _OPENSSL_REASON),
    "ssl.sigalgs.list": (("",), _OPENSSL_REASON),
    "ssl_crlfile": (("",), _OPENSSL_REASON),
    "stats_cb": ((), "call metrics()"),
    "throttle_cb": ((), _CALLBACK_REASON),
    "value.deserializer": ((f"{_BYTE_ARRAY_CLASS}Deserializer",), _DESERIALIZER_REASON),
    "value.deserializer.builder": ((), _BUILDER_REASON),
    "value.serializer": ((f"{_BYTE_ARRAY_CLASS}Serializer",), _SERIALIZER_REASON),
    "value.serializer.builder": ((), _BUILDER_REASON),
}

REFUSED_PREFIXES: Final[Mapping[str, str]] = {
    "oauthbearer_": "pass a function as oauth_cb",
    "plugin.": "plug-ins are not supported",
    "sasl.oauthbearer.assertion.": _ASSERTION_REASON,
    "ssl.engine.": _OPENSSL_REASON,
    "ssl_certificate_verify_cb": _OPENSSL_REASON,
}

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
    """Tell whether this is another client's setting that this one refuses."""
    return name in REFUSED_SETTINGS or name.startswith(tuple(REFUSED_PREFIXES))


def find_refused_settings(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield the problem of each setting of `settings` that asks for missing behaviour."""
    for name, text in settings.items():
        if name in REFUSED_SETTINGS:
            accepted_values, why = REFUSED_SETTINGS[name]
            if text.strip() not in accepted_values:
                # Values of security settings may be secrets, or have one in them.
                quote = "" if name.startswith(_SECRETIVE_PREFIXES) else f"{text!r} is "
                yield f"{name}: {quote}not supported: {why}"
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
