"""Reads the last decisions of all prefixes: each topic's partition once, and then what is added to it."""

from collections.abc import Sequence

from tallystick.admin.admin_call import AdminCall
from tallystick.client.errors import ClientError, UnknownTopic, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.console.collect.failures import describe_failure, limit_sentences
from tallystick.console.model.snapshot import PartStatus, PipelineFacts, PrefixFacts
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.records import RecordsError
from tallystick.spark.decisions.topic_reader import DecisionTopicReader
from tallystick.spark.protocol.decision_fold import DecisionLogFold
from tallystick.spark.protocol.errors import BadCommittable


class DecisionReader:
    """Reads the decision topics of a cluster, which its owner closes."""

    def __init__(self, cluster: Cluster, topics: Sequence[str], limit_ms: int) -> None:
        self._cluster, self._limit_ms = cluster, limit_ms
        self._topics = [_DecisionTopic(cluster, name) for name in topics]

    async def read(self) -> PipelineFacts:
        """Read what was added to the topics. Raises: ClientError if none could be read."""
        failures: list[str] = []
        errors: list[ClientError] = []
        for topic in self._topics:
            deadline = self._cluster.start_deadline("the limit of a reading", self._limit_ms)
            try:
                await topic.read(AdminCall(self._cluster, deadline))
            except ClientError as exc:
                errors.append(exc)
                failures.append(f"{topic.name}: {describe_failure(exc)}")
            except RecordsError as exc:
                failures.append(f"{topic.name}: {exc}")
        if errors and len(errors) == len(self._topics):
            raise errors[0]
        prefixes = [each for topic in self._topics for each in topic.list_prefixes(failures)]
        return PipelineFacts(status=PartStatus(failures=limit_sentences(failures)), prefixes=tuple(prefixes))


class _DecisionTopic:
    """One topic and what was read of it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._reader = DecisionTopicReader(
            cluster, TopicPartition(name, 0), lambda next_offset: DecisionLogFold(next_offset=next_offset)
        )
        self._topic_id: object = None

    async def read(self, asker: AdminCall) -> None:
        """Read to the end; nothing where no query has made the topic yet."""
        cluster = self._cluster
        image = await cluster.run_with_retries(
            "Metadata", self.name, lambda: cluster.refresh((self.name,)), asker.deadline
        )
        topic = image.topics.get(self.name)
        if topic is None or topic.id != self._topic_id:  # KIP-516: another topic of the same name
            self._reader.forget()
            self._topic_id = None if topic is None else topic.id
        if topic is None:
            code = image.error_codes.get(self.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            failure = build_broker_error("Metadata", self.name, code)
            if not isinstance(failure, UnknownTopic):
                raise failure
            return
        await self._reader.read_to_end(asker)

    def list_prefixes(self, failures: list[str]) -> list[PrefixFacts]:
        """Return the state of each prefix; those that cannot be decoded join the failures."""
        facts = []
        for prefix in self._reader.fold.prefixes:
            try:
                state = self._reader.fold.find_state(prefix)
            except BadCommittable as exc:
                failures.append(f"{self.name}, {prefix}: {exc}")
                continue
            facts.append(
                PrefixFacts(
                    prefix=prefix,
                    source=self.name,
                    decision=state.decision,
                    is_complete=state.is_complete,
                    note=state.note,
                    completed_nonce=state.completed_nonce,
                    is_noted_only=state.decision is None and state.note is not None,
                )
            )
        return facts
