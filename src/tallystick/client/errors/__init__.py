"""Errors that a client raises. Each says what may have happened, and what to do about it.

    BrokerRefused       a broker answered with an error code: `rule` says what it means for this API
      Fenced            a newer client with the same transactional id took over, or the epoch moved on
      IdExpired         the cluster does not know this producer (any more)
      NotAuthorized     a grant is missing; the text names it
      UnknownTopic      no such topic or partition
      TooLarge          a record or batch above a limit of the broker
    Unreachable         no connection: nothing was sent
      NotKafka          what listens there speaks another protocol, or TLS where plain text was sent
    AuthenticationFailed  the broker refused the login, or the client the broker: nothing was sent
      TlsFailed         no TLS: a certificate, a version, or a port that speaks something else
    ConnectionLost      the connection ended before the answer arrived
    TimedOut            a named limit passed
    BadAnswer           the peer's bytes are not Kafka's protocol
    NotSupported        the cluster cannot do it, or is not set up to: names the version, grant or setting
    AbortRequired       the transaction failed: only abort_transaction() is possible
    IllegalState        this call is not possible now; nothing was sent
      InvalidTxnState   the same, where KIP-939 asks for INVALID_TXN_STATE
    DecisionExpired     the cluster had ended the transaction by itself before the decision
    SerializationFailed  a serializer refused a key or value; nothing was sent
    Closed              the client was closed
    InDoubt             (kernel) a decision was sent and its outcome is unknown

`effect` is the worst over all attempts at the same operation [CLI-1]. All of them can be pickled.
"""

from typing import Self

from tallystick.client.errors.missing_rights import describe_missing_right, find_resource_name
from tallystick.client.errors.rules import Rule, find_rule, infer_loss_effect
from tallystick.kernel.codes import ErrorCode, get_error_name
from tallystick.kernel.errors import Effect, Remedy, TallystickError
from tallystick.kernel.ids import TopicPartition


class ClientError(TallystickError):
    """Base class of all client errors. `effect`: what may have happened in the cluster."""

    effect = Effect.NONE
    remedy = Remedy.REPORT

    def after(self, earlier: Effect) -> Self:
        """Return this error with the worst effect of it and earlier attempts [CLI-1]."""
        worst = self.effect.worst(earlier)
        if worst is not self.effect:
            self.effect = worst
        return self

    def copy_with(self, *, effect: Effect, remedy: Remedy) -> Self:
        """Return a copy of this error, of whose consequences more is known."""
        copy = type(self)(*self.args)
        copy.effect, copy.remedy = effect, remedy
        return copy

    def what(self) -> str:
        """Describe the failure, without its consequences."""
        return ": ".join(str(arg) for arg in self.args)

    def __str__(self) -> str:
        return f"{self.what()}; {self.effect.value}; {self.remedy.value}"


class BrokerRefused(ClientError):
    """A broker answered `api` with an error code.

    Attributes:
        api: name of the request.
        subject: the object of the request: a partition, a transactional id.
        code: Kafka's number.
        message: the broker's own text, if there was one.
        rule: effect and remedy of the code.
    """

    def __init__(self, api: str, subject: str, code: int, message: str = "") -> None:
        super().__init__(api, subject, code, message)
        self.api, self.subject, self.code, self.message = api, subject, code, message
        self.effect, self.remedy = self.rule.effect, self.rule.remedy

    @property
    def rule(self) -> Rule:
        return find_rule(self.api, self.code)

    def what(self) -> str:
        message_suffix = f" ({self.message})" if self.message else ""
        return f"{self.api} {self.subject!r}: {get_error_name(self.code)}{message_suffix}"


class Fenced(BrokerRefused):
    """A newer client with the same transactional id took over, or the epoch moved on. Close this one."""


class IdExpired(BrokerRefused):
    """The cluster does not know this producer id or transactional id: it expired or never existed."""


class NotAuthorized(BrokerRefused):
    """A grant is missing; the text names it, and the command that makes it.

    Attributes: resource, the name of the topic, group or transactional id; empty if the answer does not tell.
    """

    def __init__(self, api: str, subject: str, code: int, message: str = "", resource: str = "") -> None:
        super().__init__(api, subject, code, message)
        self.args = api, subject, code, message, resource
        self.resource = resource

    def what(self) -> str:
        grant = describe_missing_right(self.api, self.code, self.resource)
        return f"{super().what()}: {grant}" if grant else super().what()


class UnknownTopic(BrokerRefused):
    """No such topic or partition, as far as this broker knows."""


class TooLarge(BrokerRefused):
    """A record or batch is above the broker's `message.max.bytes` or the topic's `max.message.bytes`."""


_ERROR_CLASSES = {
    ErrorCode.PRODUCER_FENCED: Fenced,
    ErrorCode.INVALID_PRODUCER_EPOCH: Fenced,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: IdExpired,
    ErrorCode.UNKNOWN_PRODUCER_ID: IdExpired,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: IdExpired,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopic,
    ErrorCode.MESSAGE_TOO_LARGE: TooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: TooLarge,
}


def build_broker_error(api: str, subject: object, code: int, message: str | None = None) -> BrokerRefused:
    """Return the error for an answer with `code`, of the class that fits it."""
    cls: type[BrokerRefused] = BrokerRefused
    if code in _ERROR_CLASSES:
        cls = _ERROR_CLASSES[ErrorCode(code)]
    if cls is NotAuthorized:
        return NotAuthorized(api, str(subject), code, message or "", find_resource_name(api, subject, code))
    return cls(api, str(subject), code, message or "")


class Unreachable(ClientError):
    """No connection to a broker could be made: nothing was sent."""

    remedy = Remedy.REFRESH

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address, self.why = address, why


class NotKafka(Unreachable):
    """The first bytes of the answer are those of another protocol: nothing was sent that it could act on.

    A broker that the cluster listed may have moved since, so its address is tried again. An address of
    bootstrap.servers that has never led to a cluster is not (`Cluster.send_to_any`).
    """


class WrongBroker(Unreachable):
    """Another broker than the one that metadata lists answers at its address (KIP-1242): nothing was sent.

    The client forgets the brokers it knew, and begins again from bootstrap.servers.
    """


class AuthenticationFailed(ClientError):
    """The broker refused the login, or the client the broker: nothing was sent.

    Another try would end the same, so the call ends at once, as with Kafka's AuthenticationException.
    """

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address, self.why = address, why


class TlsFailed(AuthenticationFailed):
    """The TLS handshake failed: a certificate, a version, or a port that does not speak TLS."""


class ConnectionLost(ClientError):
    """The connection ended after the request for `api` was sent and before its answer arrived."""

    remedy = Remedy.REFRESH

    def __init__(self, address: str, api: str, why: str) -> None:
        super().__init__(address, api, why)
        self.address, self.api, self.why = address, api, why
        self.effect = infer_loss_effect(api)


class TimedOut(ClientError):
    """A limit passed. `limit` is the setting (or argument) that fixed it, `length_ms` its value.

    `is_sent`: it was the wait for one broker's answer, which `doing` names.
    """

    remedy = Remedy.REFRESH
    is_sent = False

    def __init__(self, limit: str, length_ms: int, doing: str, last: str = "") -> None:
        super().__init__(limit, length_ms, doing, last)
        self.limit, self.length_ms, self.doing, self.last = limit, length_ms, doing, last

    def what(self) -> str:
        last = f"; the last attempt: {self.last}" if self.last else ""
        return f"{self.doing}: not within {self.limit} = {self.length_ms} ms{last}"


class BadAnswer(ClientError):
    """The peer's bytes are not an answer to `api` in Kafka's protocol."""

    def __init__(self, address: str, api: str, why: str) -> None:
        super().__init__(address, api, why)
        self.address, self.api, self.why = address, api, why
        self.effect = infer_loss_effect(api)


class NotSupported(ClientError):
    """The cluster cannot do `wanted`; `missing` names the version, grant or setting that is missing."""

    def __init__(self, wanted: str, missing: str) -> None:
        super().__init__(wanted, missing)
        self.wanted, self.missing = wanted, missing


class AbortRequired(ClientError):
    """Part of this transaction failed: it can only be aborted."""

    remedy = Remedy.ABORT


class IllegalState(ClientError):
    """The call is not possible in this state. Nothing was sent."""


class InvalidTxnState(IllegalState):
    """No transaction can be prepared or completed here: no mode is configured, or keeping was not asked for.

    Source: KIP-939 "KafkaProducer API Changes", "we return an INVALID_TXN_STATE error".
    """

    code = ErrorCode.INVALID_TXN_STATE


class DecisionExpired(ClientError):
    """The cluster ended the transaction by itself before this decision arrived: never a success.

    Its records are aborted although the other system may have committed: compare, and repair by hand or by
    sending the records again.
    """

    remedy = Remedy.LOOK_UP


class SerializationFailed(ClientError):
    """A serializer failed, so the record was not sent; `__cause__` is the serializer's own error.

    Attributes: topic; field, which is key or value; why.
    """

    def __init__(self, topic: str, field: str, why: str) -> None:
        super().__init__(topic, field, why)
        self.topic, self.field, self.why = topic, field, why

    def what(self) -> str:
        return f"the {self.field} of a record for topic {self.topic!r} cannot be serialized: {self.why}"


class Closed(ClientError):
    """The client was closed before or during this call."""


class PositionUnknown(ClientError):
    """A partition has no position to read from: seek, or set `auto.offset.reset` to other than `none`.

    Attributes: topic, partition; why (no committed offset, the offset is not in the log, the log was cut).
    """

    def __init__(self, topic: str, partition: int, why: str) -> None:
        super().__init__(topic, partition, why)
        self.topic, self.partition, self.why = topic, partition, why

    def what(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)}: {self.why}, and auto.offset.reset is none"


class TopicRecreated(PositionUnknown):
    """The topic that `seek` named by its id is gone: another one has its name."""

    def what(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)}: {self.why}"


class WokenUp(ClientError):
    """`wakeup`, called from another thread or task, ended the wait of a `poll`."""


class CommitRefused(ClientError):
    """The group gave the partitions to other members before this commit: their records will be read again.

    Attributes: why. Poll, to join the group again.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class RecordUnreadable(ClientError):
    """A fetched batch is damaged or malformed; the error repeats until `seek` skips the batch.

    Attributes: topic, partition, offset to seek past, why.
    """

    def __init__(self, topic: str, partition: int, offset: int, why: str) -> None:
        super().__init__(topic, partition, offset, why)
        self.topic, self.partition, self.offset, self.why = topic, partition, offset, why

    def what(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)} at offset {self.offset}: {self.why}"


class DeserializationFailed(ClientError):
    """A deserializer failed; the error repeats until `seek` skips the record.

    `__cause__` is the deserializer's own error.

    Attributes: topic, partition; offset of the record; field, which is key or value; why.
    """

    def __init__(self, topic: str, partition: int, offset: int, field: str, why: str) -> None:
        super().__init__(topic, partition, offset, field, why)
        self.topic, self.partition, self.offset = topic, partition, offset
        self.field, self.why = field, why

    def what(self) -> str:
        at = TopicPartition(self.topic, self.partition)
        return (
            f"the {self.field} of the record at {at} offset {self.offset} cannot be deserialized: {self.why}"
        )
