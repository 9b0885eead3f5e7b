"""Fetcher: keeps data ready for `poll`, with one fetch in flight to every leader and a queue of responses.

A partition is fetched only while none of its data is buffered, so memory is bounded by one response per
broker. `fetch_state` decides what to request and what a response means; `decode` reads the bytes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from tallystick.client.config import ConsumerConfig
from tallystick.client.consumer.arrow import Piece, take_piece
from tallystick.client.consumer.decode import ConsumerRecord, Fetched
from tallystick.client.consumer.errors import PositionUnknown, RecordUnreadable
from tallystick.client.consumer.fetch_state import (
    FetchSession,
    Position,
    SessionStep,
    Tracks,
    Verdict,
    Wanted,
    verdict_of,
)
from tallystick.client.consumer.offset_requests import ISOLATION
from tallystick.client.errors import BrokerRefused, ClientError, refused
from tallystick.client.net.cluster import Cluster
from tallystick.client.offsets import by_topic
from tallystick.client.retry import rule_for
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import frozen
from tallystick.protocol.messages.fetch import (
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

LANE: Final = "fetch"
_BY_NAME_MAX: Final = 12


@frozen
class _AtHand:
    fetched: Fetched
    serial: int


class Fetcher:
    """Fetches of one consumer, on its loop; `kick` starts requests, `take` returns records."""

    def __init__(
        self, config: ConsumerConfig, cluster: Cluster, tracks: Tracks, news: Callable[[], None]
    ) -> None:
        """Create a fetcher without sessions.

        Args:
            news: called when `take` has something to return or to raise.
        """
        self._config, self._cluster, self._tracks, self._news = config, cluster, tracks, news
        self.isolation = ISOLATION[config.isolation_level]
        self._sessions: dict[int, FetchSession] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._resting: set[asyncio.Task[None]] = set()
        self._looked_for: set[str] = set()
        self._row: deque[_AtHand] = deque()
        self._errors: deque[tuple[TopicPartition, int, Exception]] = deque()
        self.passed_hidden = False
        """Whether the last `take` moved a position past hidden data only."""

    def close(self) -> None:
        """Cancel all requests and drop buffered data."""
        for task in (*self._under_way.values(), *self._resting):
            task.cancel()
        self._row.clear()
        self._errors.clear()

    # -------------------------------------------------------------------------- taking

    def take(self, most: int) -> list[ConsumerRecord]:
        """Return up to `most` records, without waiting.

        Raises: errors of fetching, each once: BrokerRefused, PositionUnknown, RecordUnreadable. Records taken
            before an error are returned first.
        """
        records: list[ConsumerRecord] = []

        def take_records(fetched: Fetched, room: int) -> int:
            some = fetched.take(room)
            records.extend(some)
            return len(some)

        self._take(most, take_records)
        return records

    def take_pieces(self, most: int) -> list[Piece]:
        """Take like `take`, for an Arrow batch."""
        pieces: list[Piece] = []

        def take_rows(fetched: Fetched, room: int) -> int:
            piece, rows = take_piece(fetched, room)
            if rows:
                pieces.append(piece)
            return rows

        self._take(most, take_rows)
        return pieces

    def _take(self, most: int, take: Callable[[Fetched, int], int]) -> None:
        taken = 0
        self.passed_hidden = False
        for _ in range(len(self._row)):
            if taken >= most:
                break
            at_hand = self._row[0]
            fetched, partition = at_hand.fetched, at_hand.fetched.partition
            track = self._tracks.get(partition)
            if track is None or track.serial != at_hand.serial:
                self._row.popleft()
            elif track.paused:
                self._row.rotate(-1)
            else:
                try:
                    taken += take(fetched, most - taken)
                except RecordsError as exc:
                    self._row.popleft()
                    at, where = fetched.position, (partition.topic, partition.partition)
                    self._fail(partition, at_hand.serial, RecordUnreadable(*where, at, exc.reason))
                    continue
                self._advance(at_hand)
                if fetched.exhausted:
                    self._row.popleft()
                    track.at_hand = False
        self.kick()
        self.passed_hidden = self.passed_hidden and not taken
        if not taken:
            self._raise()

    def _advance(self, at_hand: _AtHand) -> None:
        """Move the position past the records taken."""
        fetched, partition = at_hand.fetched, at_hand.fetched.partition
        position = self._tracks[partition].position
        self.passed_hidden |= position is not None and fetched.position > position.offset
        before = None if position is None else position.leader_epoch
        epoch = before if fetched.leader_epoch is None else fetched.leader_epoch
        self._tracks.advance(partition, at_hand.serial, Position(fetched.position, epoch))

    def _fail(self, partition: TopicPartition, serial: int, error: Exception) -> None:
        """Keep the error for `take`; the partition is not fetched again until it was raised."""
        track = self._tracks.get(partition)
        if track is None:
            return
        track.at_hand = True
        self._errors.append((partition, serial, error))
        self._news()

    def _raise(self) -> None:
        while self._errors:
            partition, serial, error = self._errors.popleft()
            track = self._tracks.get(partition)
            if track is not None and track.serial == serial:
                track.at_hand = False
                raise error

    @property
    def has_news(self) -> bool:
        """Whether `take` would return or raise something."""
        return bool(self._errors) or any(self._is_ready(at_hand) for at_hand in self._row)

    def _is_ready(self, at_hand: _AtHand) -> bool:
        track = self._tracks.get(at_hand.fetched.partition)
        return track is None or not track.paused

    # -------------------------------------------------------------------------- asking

    def kick(self) -> None:
        """Fetch from every leader without a request in flight, for partitions without buffered data."""
        asking: dict[int, dict[TopicPartition, tuple[Wanted, int]]] = {}
        unknown: list[TopicPartition] = []
        image = self._cluster.image
        for partition, track, position in self._tracks.fetchable():
            info = image.partition(partition)
            node = image.leader(partition)
            if track.replica is not None and track.replica in image.nodes:
                node = track.replica
            if node is None or info is None:
                code = image.why_not(partition)
                if partition.topic in image.errors and not rule_for("Metadata", code).remedy.repeats:
                    self._fail(partition, track.serial, refused("Metadata", partition, code))
                else:
                    unknown.append(partition)
            elif node not in self._under_way:
                wanted = Wanted(
                    position.offset,
                    self._config.max_partition_fetch_bytes,
                    info.leader_epoch,
                    position.leader_epoch,
                )
                asking.setdefault(node, {})[partition] = (wanted, track.serial)
        for node, wanted_there in asking.items():
            for partition in wanted_there:
                self._tracks[partition].at_hand = True
            self._under_way[node] = asyncio.get_running_loop().create_task(self._ask(node, wanted_there))
        if unknown:
            self._rest(dict.fromkeys(unknown), refresh=True)

    async def _ask(self, node: int, wanted: dict[TopicPartition, tuple[Wanted, int]]) -> None:
        """Make one fetch. Errors without a rule, bugs of this package included, are raised by `take`."""
        session = self._sessions.setdefault(node, FetchSession())
        again: dict[TopicPartition, None] = {}
        refresh = False
        try:
            again, refresh = await self._fetch(node, session, wanted)
        except Exception as exc:
            session.lost()
            kept = {at_hand.fetched.partition for at_hand in self._row}
            for partition, (_, serial) in wanted.items():
                if partition not in kept:  # else its records are returned first, and not fetched again
                    self._fail(partition, serial, exc)
        finally:
            del self._under_way[node]
        if again:
            self._rest(again, refresh=refresh)
        if self._row:
            self._news()
        self.kick()

    async def _fetch(
        self, node: int, session: FetchSession, wanted: dict[TopicPartition, tuple[Wanted, int]]
    ) -> tuple[dict[TopicPartition, None], bool]:
        """Return the partitions to ask for again after a backoff, and whether to refresh metadata."""
        step = session.step({partition: want for partition, (want, _) in wanted.items()})
        request, by_id = self._request(step)
        try:
            answer = await self._cluster.send(
                node,
                request,
                FetchResponse,
                max_version=None if by_id is not None else _BY_NAME_MAX,
                timeout_ms=self._config.client.request_timeout_ms,
                lane=LANE,
            )
        except ClientError as exc:
            if not exc.remedy.repeats:
                raise
            session.lost()
            _log.debug("fetch from broker %d: %s", node, exc)
            return dict.fromkeys(wanted), True
        session.answered(answer.error_code, answer.session_id)
        if answer.error_code:
            _log.debug("fetch session with broker %d: code %d", node, answer.error_code)
        return self._take_answer(node, answer, wanted, by_id or {})

    def _request(self, step: SessionStep) -> tuple[FetchRequest, dict[UUID, str] | None]:
        """Return the request, and topic names by id; None for the names if some topic has no id."""
        config, topics = self._config, self._cluster.image.topics
        named = {p.topic for p in (*step.asked, *step.forgotten)}
        ids = {topic: topics[topic].id if topic in topics else NIL for topic in named}
        request = FetchRequest(
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=self.isolation,
            session_id=step.session_id,
            session_epoch=step.epoch,
            topics=tuple(
                FetchTopic(
                    topic=topic,
                    topic_id=ids[topic],
                    partitions=tuple(_asked(at, step.asked[at]) for at in partitions),
                )
                for topic, partitions in by_topic(step.asked).items()
            ),
            forgotten_topics_data=tuple(
                ForgottenTopic(topic=topic, topic_id=ids[topic], partitions=tuple(p.partition for p in gone))
                for topic, gone in by_topic(step.forgotten).items()
            ),
            rack_id=config.client_rack,
        )
        return request, None if NIL in ids.values() else {i: topic for topic, i in ids.items()}

    # ------------------------------------------------------------------------- answers

    def _take_answer(
        self,
        node: int,
        answer: FetchResponse,
        wanted: dict[TopicPartition, tuple[Wanted, int]],
        names: dict[UUID, str],
    ) -> tuple[dict[TopicPartition, None], bool]:
        """Act on every partition; return those to ask for again after a backoff, and whether to refresh."""
        again: dict[TopicPartition, None] = {}
        refresh = False
        idle = dict(wanted)
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id) or self._cluster.image.topic_named(topic.topic_id)
            for data in topic.partitions:
                at = TopicPartition(name or "", data.partition_index)
                if at not in idle:
                    continue
                want, serial = idle.pop(at)
                verdict = self._act(node, at, data, want, serial)
                if verdict in (Verdict.AGAIN, Verdict.REFRESH):
                    again[at] = None
                    refresh = refresh or verdict is Verdict.REFRESH
        # KIP-227: a session's response omits partitions without changes; one with an error code omits all.
        for at, (_, serial) in idle.items():
            track = self._tracks.get(at)
            if answer.error_code:
                again[at] = None
            elif track is not None and track.serial == serial:
                track.at_hand = False
        return again, refresh

    def _act(self, node: int, at: TopicPartition, data: PartitionData, want: Wanted, serial: int) -> Verdict:
        track = self._tracks.get(at)
        if track is None or track.serial != serial:
            return Verdict.STALE
        diverging = data.diverging_epoch
        verdict = verdict_of(
            data.error_code, from_replica=track.replica == node, diverges=diverging.end_offset >= 0
        )
        track.at_hand = verdict in (Verdict.AGAIN, Verdict.REFRESH)
        match verdict:
            case Verdict.DATA:
                self._keep(at, data, want, serial)
            case Verdict.LEADER:
                track.replica = None
            case Verdict.RESET if not self._tracks.out_of_range(at):
                why = f"offset {want.offset} is not in the log"
                self._fail(at, serial, PositionUnknown(at.topic, at.partition, why))
            case Verdict.TRUNCATED:
                epoch = None if diverging.epoch < 0 else diverging.epoch
                _log.warning("%s was cut: its log goes on from offset %d", at, diverging.end_offset)
                if not self._tracks.truncated(at, diverging.end_offset, epoch):
                    why = f"the log was cut below offset {want.offset}, to {diverging.end_offset}"
                    self._fail(at, serial, PositionUnknown(at.topic, at.partition, why))
            case Verdict.FAIL:
                self._fail(at, serial, refused("Fetch", at, data.error_code))
            case _:
                pass
        if track.position is None:
            self._news()
        return verdict

    def _keep(self, at: TopicPartition, data: PartitionData, want: Wanted, serial: int) -> None:
        track = self._tracks[at]
        track.high_watermark = data.high_watermark
        track.last_stable_offset = data.last_stable_offset if data.last_stable_offset >= 0 else None
        track.log_start_offset = data.log_start_offset if data.log_start_offset >= 0 else None
        # KIP-392: the leader names a replica nearer to client.rack.
        if data.preferred_read_replica >= 0:
            track.replica = data.preferred_read_replica
        if not data.records:
            return
        aborted = None
        if self.isolation:
            aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()]
        fetched = Fetched(at, want.offset, data.records, aborted, check_crcs=self._config.check_crcs)
        track.at_hand = True
        self._row.append(_AtHand(fetched, serial))

    def _rest(self, partitions: Iterable[TopicPartition], *, refresh: bool) -> None:
        """Ask for these partitions again after a backoff."""
        serials: dict[TopicPartition, int] = {}
        for partition in partitions:
            track = self._tracks.get(partition)
            if track is not None:
                track.at_hand = True
                serials[partition] = track.serial

        async def rest() -> None:
            if not {partition.topic for partition in serials} - self._looked_for:
                await asyncio.sleep(self._config.client.retry_backoff_ms / 1000)
            self._looked_for.update(partition.topic for partition in serials)
            try:
                if refresh:
                    await self._cluster.refresh({partition.topic for partition in serials})
            except ClientError as exc:
                _log.debug("no new metadata: %s", exc)
                for partition in [p for p in serials if _names(exc, p.topic)]:
                    self._fail(partition, serials.pop(partition), exc)
            except Exception as exc:
                for partition, serial in serials.items():
                    self._fail(partition, serial, exc)
                serials.clear()
            for partition, serial in serials.items():
                track = self._tracks.get(partition)
                if track is not None and track.serial == serial:
                    track.at_hand = False
            self.kick()

        task = asyncio.get_running_loop().create_task(rest())
        self._resting.add(task)
        task.add_done_callback(self._resting.discard)


def _names(exc: ClientError, topic: str) -> bool:
    """Tell whether the error is about this topic and a retry does not help."""
    return isinstance(exc, BrokerRefused) and exc.subject == topic and not exc.remedy.repeats


def _asked(at: TopicPartition, want: Wanted) -> FetchPartition:
    return FetchPartition(
        partition=at.partition,
        current_leader_epoch=-1 if want.leader_epoch is None else want.leader_epoch,
        fetch_offset=want.offset,
        last_fetched_epoch=-1 if want.last_fetched_epoch is None else want.last_fetched_epoch,
        partition_max_bytes=want.max_bytes,
    )
