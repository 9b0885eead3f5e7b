"""Reads the last decisions of all prefixes: each topic's partition once, and then what is added to it."""

from collections.abc import Iterable, Sequence

from tallystick.admin.admin_call import AdminCall
from tallystick.client.errors import ClientError, UnknownTopic, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.console.collect.failures import describe_failure, limit_sentences
from tallystick.console.model.snapshot import PartStatus, PipelineFacts, PrefixFacts, StoreFacts
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
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

    async def read(self, call: AdminCall) -> None:
        """Read to the end; nothing where no query has made the topic yet."""
        cluster = self._cluster
        image = await cluster.run_with_retries(
            "Metadata", self.name, lambda: cluster.refresh((self.name,)), call.deadline
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
        await self._reader.read_to_end(call)

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


def join_prefixes(
    topic_prefixes: Iterable[PrefixFacts], stores: Iterable[StoreFacts]
) -> tuple[PrefixFacts, ...]:
    """Join the decisions of topics and of databases, of which the cluster has a note each."""
    topic_prefixes = tuple(topic_prefixes)
    in_stores = [each for store in stores for each in store.prefixes]
    names_in_stores = {each.prefix for each in in_stores}
    notes = {each.prefix: each for each in topic_prefixes if each.decision is None}
    decided = [
        each for each in topic_prefixes if each.decision is not None or each.prefix not in names_in_stores
    ]
    noted = [_add_note(each, notes.get(each.prefix)) for each in in_stores]
    return tuple(sorted([*decided, *noted], key=lambda each: (each.prefix, each.source)))


def _add_note(stored: PrefixFacts, noted: PrefixFacts | None) -> PrefixFacts:
    """Add what the cluster has noted of a decision; a lake table keeps nowhere else that it is completed."""
    if noted is None:
        return stored
    nonce = None if stored.decision is None else stored.decision.nonce
    is_complete = stored.is_complete or (nonce is not None and nonce == noted.completed_nonce)
    return replace(stored, note=noted.note, is_complete=is_complete)
