"""Fetcher: keeps data ready for `poll`, with one fetch in flight to every leader and a queue of responses.

A partition is fetched only while none of its data is buffered, so memory is bounded by one response per
broker. `fetch_state` decides what to request and what a response means; `decode` reads the bytes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from tallystick.client.consumer.arrow import RowChunk, take_chunk
from tallystick.client.consumer.decode import CompletedFetch, ConsumerRecord
from tallystick.client.consumer.fetch_state import (
    FetchOutcome,
    FetchRequestData,
    FetchSessionHandler,
    PartitionFetchParams,
    Position,
    SubscriptionState,
    classify_fetch_response,
)
from tallystick.client.consumer.offset_requests import ISOLATION_LEVELS
from tallystick.client.errors import (
    BrokerRefused,
    ClientError,
    PositionUnknown,
    RecordUnreadable,
    TopicRecreated,
    build_broker_error,
)
from tallystick.client.errors.rules import find_rule
from tallystick.client.net.cluster import Cluster
from tallystick.client.offsets import group_by_topic
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.messages.data.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tallystick.protocol.primitives import NIL
from tallystick.protocol.records import RecordsError

_log = logging.getLogger("tallystick.consumer")

FETCH_CONNECTION: Final = "fetch"
_TOPIC_NAME_VERSION_MAX: Final = 12


class _BufferedFetch(Value):
    completed_fetch: CompletedFetch
    position_version: int


class Fetcher:
    """Fetches of one consumer, on its loop.

    `send_fetches` starts requests, `take_records` returns records.
    """

    def __init__(
        self, config: ConsumerConfig, cluster: Cluster, tracks: SubscriptionState, news: Callable[[], None]
    ) -> None:
        """Create a fetcher without sessions.

        Args:
            news: called when `take_records` has something to return or to raise.
        """
        self._config, self._cluster, self._subscriptions, self._notify = config, cluster, tracks, news
        self.isolation_level = ISOLATION_LEVELS[config.isolation_level]
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._backoff_tasks: set[asyncio.Task[None]] = set()
        self._refreshed_topics: set[str] = set()
        self._completed_fetches: deque[_BufferedFetch] = deque()
        self._errors: deque[tuple[TopicPartition, int, Exception]] = deque()
        self.has_skipped_hidden = False
        """Whether the last `take_records` moved a position past hidden data only."""

    def close(self) -> None:
        """Cancel all requests and drop buffered data."""
        for task in (*self._in_flight.values(), *self._backoff_tasks):
            task.cancel()
        self._completed_fetches.clear()
        self._errors.clear()

    # -------------------------------------------------------------------------- taking

    def take_records(self, most: int) -> list[ConsumerRecord]:
        """Return up to `most` records, without waiting.

        Raises: errors of fetching, each once: BrokerRefused, PositionUnknown, RecordUnreadable. Records taken
            before an error are returned first.
        """
        records: list[ConsumerRecord] = []

        def take_records(fetch: CompletedFetch, room: int) -> int:
            some = fetch.take_records(room)
            records.extend(some)
            return len(some)

        self._drain(most, take_records)
        return records

    def take_chunks(self, most: int) -> list[RowChunk]:
        """Take like `take_records`, for an Arrow batch."""
        pieces: list[RowChunk] = []

        def take_rows(fetch: CompletedFetch, room: int) -> int:
            piece, rows = take_chunk(fetch, room)
            if rows:
                pieces.append(piece)
            return rows

        self._drain(most, take_rows)
        return pieces

    def _drain(self, most: int, take: Callable[[CompletedFetch, int], int]) -> None:
        count = 0
        self.has_skipped_hidden = False
        for _ in range(len(self._completed_fetches)):
            if count >= most:
                break
            at_hand = self._completed_fetches[0]
            fetch, partition = at_hand.completed_fetch, at_hand.completed_fetch.partition
            track = self._subscriptions.get(partition)
            if track is None or track.position_version != at_hand.position_version:
                self._completed_fetches.popleft()
            elif track.is_paused:
                self._completed_fetches.rotate(-1)
            else:
                try:
                    count += take(fetch, most - count)
                except RecordsError as exc:
                    self._completed_fetches.popleft()
                    at, where = fetch.position, (partition.topic, partition.partition)
                    self._queue_error(
                        partition, at_hand.position_version, RecordUnreadable(*where, at, exc.reason)
                    )
                    continue
                self._advance(at_hand)
                if fetch.is_exhausted:
                    self._completed_fetches.popleft()
                    track.has_pending_fetch = False
        self.send_fetches()
        self.has_skipped_hidden = self.has_skipped_hidden and not count
        if not count:
            self._raise_queued_error()

    def _advance(self, at_hand: _BufferedFetch) -> None:
        """Move the position past the records taken."""
        fetch, partition = at_hand.completed_fetch, at_hand.completed_fetch.partition
        position = self._subscriptions[partition].position
        self.has_skipped_hidden |= position is not None and fetch.position > position.offset
        before = None if position is None else position.leader_epoch
        epoch = before if fetch.leader_epoch is None else fetch.leader_epoch
        self._subscriptions.advance(partition, at_hand.position_version, Position(fetch.position, epoch))

    def _queue_error(self, partition: TopicPartition, serial: int, error: Exception) -> None:
        """Keep the error for `take_records`; the partition is not fetched again until it was raised."""
        track = self._subscriptions.get(partition)
        if track is None:
            return
        track.has_pending_fetch = True
        self._errors.append((partition, serial, error))
        self._notify()

    def _raise_queued_error(self) -> None:
        while self._errors:
            partition, serial, error = self._errors.popleft()
            track = self._subscriptions.get(partition)
            if track is not None and track.position_version == serial:
                track.has_pending_fetch = False
                raise error

    def _is_ready(self, at_hand: _BufferedFetch) -> bool:
        track = self._subscriptions.get(at_hand.completed_fetch.partition)
        return track is None or not track.is_paused

    # -------------------------------------------------------------------------- asking

    def send_fetches(self) -> None:
        """Fetch from every leader without a request in flight, for partitions without buffered data."""
        params_by_node: dict[int, dict[TopicPartition, tuple[PartitionFetchParams, int]]] = {}
        unknown: list[TopicPartition] = []
        image, now_ms = self._cluster.image, self._cluster.now_ms()
        for partition, track, known_position in self._subscriptions.list_fetchable():
            info = image.find_partition(partition)
            node = image.find_leader(partition)
            if info is not None and track.is_other_topic(image.topics[partition.topic].id):
                self._handle_other_topic(partition, track.position_version, unknown)
                continue
            replica = self._subscriptions.find_preferred_replica(partition, now_ms)
            if replica is not None and not image.is_online_replica(partition, replica):
                # The leader may know more than our metadata. Asked at once, it would name the replica again.
                self._subscriptions.clear_preferred_replicas([partition])
                unknown.append(partition)
                continue
            node = node if replica is None else replica
            if node is None or info is None:
                code = image.find_leader_error(partition)
                if partition.topic in image.error_codes and not find_rule("Metadata", code).remedy.repeats:
                    self._queue_error(
                        partition, track.position_version, build_broker_error("Metadata", partition, code)
                    )
                else:
                    unknown.append(partition)
            elif node not in self._in_flight:
                topic_id = image.topics[partition.topic].id
                position = self._subscriptions.note_topic_id(partition, topic_id) or known_position
                params = PartitionFetchParams(
                    position.offset,
                    self._config.max_partition_fetch_bytes,
                    info.leader_epoch,
                    position.leader_epoch,
                    topic_id,
                )
                params_by_node.setdefault(node, {})[partition] = (params, track.position_version)
        for node, params_by_partition in params_by_node.items():
            for partition in params_by_partition:
                self._subscriptions[partition].has_pending_fetch = True
            self._in_flight[node] = asyncio.get_running_loop().create_task(
                self._run_fetch(node, params_by_partition)
            )
        if unknown:
            self._retry_after_backoff(dict.fromkeys(unknown), refresh=True)

    def _handle_other_topic(
        self, partition: TopicPartition, serial: int, unknown: list[TopicPartition]
    ) -> None:
        """Look up again under which id the name is known, then report it: our metadata may be old."""
        if not self._subscriptions.note_other_topic(partition):
            unknown.append(partition)
            return
        why = "the topic was deleted and made anew: it has another topic id"
        self._queue_error(partition, serial, TopicRecreated(partition.topic, partition.partition, why))

    async def _run_fetch(
        self, node: int, params: dict[TopicPartition, tuple[PartitionFetchParams, int]]
    ) -> None:
        """Make one fetch.

        Errors without a rule, bugs of this package included, are raised by `take_records`.
        """
        session = self._sessions.setdefault(node, FetchSessionHandler())
        retries: dict[TopicPartition, None] = {}
        refresh = False
        try:
            retries, refresh = await self._send_fetch(node, session, params)
        except Exception as exc:
            self._handle_failed_fetch(session, params)
            buffered_partitions = {at_hand.completed_fetch.partition for at_hand in self._completed_fetches}
            for partition, (_, serial) in params.items():
                # Buffered records are returned first, and not fetched again.
                if partition not in buffered_partitions:
                    self._queue_error(partition, serial, exc)
        finally:
            del self._in_flight[node]
        if retries:
            self._retry_after_backoff(retries, refresh=refresh)
        if self._completed_fetches:
            self._notify()
        self.send_fetches()

    async def _send_fetch(
        self,
        node: int,
        session: FetchSessionHandler,
        params: dict[TopicPartition, tuple[PartitionFetchParams, int]],
    ) -> tuple[dict[TopicPartition, None], bool]:
        """Return the partitions to ask for again after a backoff, and whether to refresh metadata."""
        step = session.build_request({partition: want for partition, (want, _) in params.items()})
        topic_ids = {want.topic_id for want, _ in params.values()}.union(step.to_forget.values())
        try:
            answer = await self._cluster.send(
                node,
                self._build_request(step),
                FetchResponse,
                max_version=_TOPIC_NAME_VERSION_MAX if NIL in topic_ids else None,
                timeout_ms=self._config.client.request_timeout_ms,
                connection_name=FETCH_CONNECTION,
            )
        except ClientError as exc:
            if not exc.remedy.repeats:
                raise
            self._handle_failed_fetch(session, params)
            _log.debug("fetch from broker %d: %s", node, exc)
            return dict.fromkeys(params), True
        session.handle_response(answer.error_code, answer.session_id)
        if answer.error_code:
            _log.debug("fetch session with broker %d: code %d", node, answer.error_code)
        return self._handle_response(node, answer, params)

    def _handle_failed_fetch(
        self, session: FetchSessionHandler, partitions: Iterable[TopicPartition]
    ) -> None:
        """Begin a new session, and read from the leaders. Source: Kafka AbstractFetch.handleFetchFailure."""
        session.handle_error()
        self._subscriptions.clear_preferred_replicas(partitions)

    def _build_request(self, step: FetchRequestData) -> FetchRequest:
        config = self._config
        return FetchRequest(
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=self.isolation_level,
            session_id=step.session_id,
            session_epoch=step.epoch,
            topics=tuple(
                FetchTopic(
                    topic=topic,
                    topic_id=step.to_send[partitions[0]].topic_id,
                    partitions=tuple(_build_fetch_partition(at, step.to_send[at]) for at in partitions),
                )
                for topic, partitions in group_by_topic(step.to_send).items()
            ),
            forgotten_topics_data=tuple(
                ForgottenTopic(
                    topic=topic,
                    topic_id=step.to_forget[forgotten_partitions[0]],
                    partitions=tuple(p.partition for p in forgotten_partitions),
                )
                for topic, forgotten_partitions in group_by_topic(step.to_forget).items()
            ),
            rack_id=config.client_rack,
        )

    # ------------------------------------------------------------------------- answers

    def _handle_response(
        self,
        node: int,
        answer: FetchResponse,
        params: dict[TopicPartition, tuple[PartitionFetchParams, int]],
    ) -> tuple[dict[TopicPartition, None], bool]:
        """Act on every partition; return those to ask for again after a backoff, and whether to refresh."""
        retries: dict[TopicPartition, None] = {}
        refresh = False
        idle = dict(params)
        # `params` are all partitions of the session: names by id are those that it was built with.
        names = {want.topic_id: at.topic for at, (want, _) in params.items()}
        is_session_off = bool(answer.error_code)
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                at = TopicPartition(name, data.partition_index)
                is_session_off |= at not in params
                if at not in idle:
                    continue
                want, serial = idle.pop(at)
                verdict = self._handle_partition(node, at, data, want, serial)
                if verdict in (FetchOutcome.RETRY, FetchOutcome.REFRESH_METADATA):
                    retries[at] = None
                    refresh = refresh or verdict is FetchOutcome.REFRESH_METADATA
        if is_session_off and not answer.error_code:
            # Source: Kafka FetchSessionHandler.verifyIncrementalFetchResponsePartitions. If the session were
            # kept, an error that it has for the other partition would be answered at once, again and again.
            _log.info("broker %d answered about partitions that are not in its fetch session", node)
            self._sessions[node].handle_error()
        # KIP-227: a session's response omits partitions without changes; one with an error code omits all.
        for at, (_, serial) in idle.items():
            track = self._subscriptions.get(at)
            if is_session_off:
                retries[at] = None
            elif track is not None and track.position_version == serial:
                track.has_pending_fetch = False
        return retries, refresh

    def _handle_partition(
        self, node: int, at: TopicPartition, data: PartitionData, want: PartitionFetchParams, serial: int
    ) -> FetchOutcome:
        track = self._subscriptions.get(at)
        if track is None or track.position_version != serial:
            return FetchOutcome.STALE
        diverging = data.diverging_epoch
        verdict = classify_fetch_response(
            data.error_code,
            from_replica=track.preferred_read_replica == node,
            diverges=diverging.end_offset >= 0,
        )
        if data.error_code:
            # Source: Kafka FetchUtils.requestMetadataUpdate. The leader decides what comes next.
            self._subscriptions.clear_preferred_replicas([at])
        track.has_pending_fetch = verdict in (FetchOutcome.RETRY, FetchOutcome.REFRESH_METADATA)
        match verdict:
            case FetchOutcome.DATA:
                self._buffer_data(at, data, want, serial)
            case FetchOutcome.OUT_OF_RANGE if not self._subscriptions.reset_position(at):
                why = f"offset {want.offset} is not in the log"
                self._queue_error(at, serial, PositionUnknown(at.topic, at.partition, why))
            case FetchOutcome.TRUNCATED:
                epoch = None if diverging.epoch < 0 else diverging.epoch
                _log.warning("%s was cut: its log goes on from offset %d", at, diverging.end_offset)
                if not self._subscriptions.truncate_position(at, diverging.end_offset, epoch):
                    why = f"the log was cut below offset {want.offset}, to {diverging.end_offset}"
                    self._queue_error(at, serial, PositionUnknown(at.topic, at.partition, why))
            case FetchOutcome.FATAL:
                self._queue_error(at, serial, build_broker_error("Fetch", at, data.error_code))
            case _:
                pass
        if track.position is None:
            self._notify()
        return verdict

    def _buffer_data(
        self, at: TopicPartition, data: PartitionData, want: PartitionFetchParams, serial: int
    ) -> None:
        track = self._subscriptions[at]
        track.high_watermark = data.high_watermark
        track.last_stable_offset = data.last_stable_offset if data.last_stable_offset >= 0 else None
        track.log_start_offset = data.log_start_offset if data.log_start_offset >= 0 else None
        # KIP-392: the leader names a replica nearer to client.rack.
        if data.preferred_read_replica >= 0:
            expires_at_ms = self._cluster.now_ms() + self._config.client.metadata_max_age_ms
            self._subscriptions.set_preferred_replica(at, data.preferred_read_replica, expires_at_ms)
        if not data.records:
            return
        aborted_transactions = None
        if self.isolation_level:
            aborted_transactions = [
                (each.producer_id, each.first_offset) for each in data.aborted_transactions or ()
            ]
        fetch = CompletedFetch(
            at, want.offset, data.records, aborted_transactions, check_crcs=self._config.check_crcs
        )
        track.has_pending_fetch = True
        self._completed_fetches.append(_BufferedFetch(fetch, serial))

    def _retry_after_backoff(self, partitions: Iterable[TopicPartition], *, refresh: bool) -> None:
        """Ask for these partitions again after a backoff."""
        serials: dict[TopicPartition, int] = {}
        for partition in partitions:
            track = self._subscriptions.get(partition)
            if track is not None:
                track.has_pending_fetch = True
                serials[partition] = track.position_version

        async def wait_and_refresh() -> None:
            if not {partition.topic for partition in serials} - self._refreshed_topics:
                await asyncio.sleep(self._config.client.retry_backoff_ms / 1000)
            self._refreshed_topics.update(partition.topic for partition in serials)
            try:
                if refresh:
                    await self._cluster.refresh({partition.topic for partition in serials})
            except ClientError as exc:
                _log.debug("no new metadata: %s", exc)
                for partition in [p for p in serials if _is_fatal_for_topic(exc, p.topic)]:
                    self._queue_error(partition, serials.pop(partition), exc)
            except Exception as exc:
                for partition, serial in serials.items():
                    self._queue_error(partition, serial, exc)
                serials.clear()
            for partition, serial in serials.items():
                track = self._subscriptions.get(partition)
                if track is not None and track.position_version == serial:
                    track.has_pending_fetch = False
            self.send_fetches()

        task = asyncio.get_running_loop().create_task(wait_and_refresh())
        self._backoff_tasks.add(task)
        task.add_done_callback(self._backoff_tasks.discard)


def _is_fatal_for_topic(exc: ClientError, topic: str) -> bool:
    """Return whether the error is about this topic and a retry does not help."""
    return isinstance(exc, BrokerRefused) and exc.subject == topic and not exc.remedy.repeats


def _build_fetch_partition(at: TopicPartition, want: PartitionFetchParams) -> FetchPartition:
    return FetchPartition(
        partition=at.partition,
        current_leader_epoch=-1 if want.leader_epoch is None else want.leader_epoch,
        fetch_offset=want.offset,
        last_fetched_epoch=-1 if want.last_fetched_epoch is None else want.last_fetched_epoch,
        partition_max_bytes=want.max_bytes,
    )
