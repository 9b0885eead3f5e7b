"""The collector: reads every part again and again, each at its own pace, and publishes snapshots.

Parts are read concurrently, so that one that is away or slow delays no other. A reading that fails leaves the
part as it was, with its age and the reason [CON-3]. What was read becomes visible together: a snapshot is a
new value, and those who have the one before do not see it change. The more its followers make of a snapshot,
the later comes the next.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from tallystick.admin.aio import Admin
from tallystick.client.net.cluster import Cluster
from tallystick.console.collect.cluster_reader import ClusterReader
from tallystick.console.collect.config import (
    AWAY_INTERVAL_MS_MAX,
    AWAY_REST_MS_MAX,
    PARTIAL_REST_MS_MAX,
    CollectorConfig,
    Pace,
    compute_interval_ms,
    compute_patience_ms,
)
from tallystick.console.collect.decision_reader import DecisionReader, join_prefixes
from tallystick.console.collect.failures import REFUSALS, describe_failure
from tallystick.console.collect.group_reader import GroupReader
from tallystick.console.collect.record_counter import RecordCounter
from tallystick.console.collect.store_reader import StoreReader
from tallystick.console.collect.transaction_reader import TransactionReader, list_named_ids
from tallystick.console.model.snapshot import PartStatus, Snapshot, StoreFacts, TransactionFacts
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value, replace

_log = logging.getLogger("tallystick.console")

LIMIT_MARGIN_MS: Final = 1_000
"""The client's own limit passes first, because its error says more."""

PUBLISH_MS_MAX: Final = 10_000
AGAIN_MS: Final = 1_000
"""While a part is away there is a snapshot this often, so that pages do not show an age that stands still."""

FIRST_MS_MAX: Final = 3_000
"""The first snapshot waits so long for parts that have not been read: half a picture has no verdicts."""


class Part(Value, kw_only=True):
    """One part of the snapshot and how it is read.

    read    reads it; raises what keeps it from being read
    find    returns the part of a snapshot
    place   returns the snapshot with another part
    follow_up  runs when the part was read and placed
    """

    name: str
    pace: Pace
    read: Callable[[], Awaitable[Any]]
    find: Callable[[Snapshot], Any]
    place: Callable[[Snapshot, Any], Snapshot]
    follow_up: Callable[[], Awaitable[None]] | None = None


class Collector:
    """Keeps a snapshot up to date while it is entered. Belongs to one event loop.

    async with Collector(config) as collector:
        async for snapshot in collector.follow():
            ...
    """

    def __init__(self, config: CollectorConfig, *, clock: Clock | None = None) -> None:
        """Prepare the readings without connecting. Raises: BadConfig."""
        self._config, self._clock = config, clock or SystemClock()
        self._draft = Snapshot(
            bootstrap_servers=config.bootstrap_servers,
            stores=tuple(StoreFacts(name=store.name, kind=store.kind) for store in config.stores),
        )
        self._publisher = Publisher(self._draft)
        self._is_dirty = asyncio.Event()
        self._untried: set[str] = set()
        self._all_tried = asyncio.Event()
        self._hurry: dict[str, asyncio.Event] = {}
        self._task: asyncio.Task[None] | None = None
        self._admin = Admin(config.admin_settings)
        self._cluster = Cluster(self._admin.config.client)  # for requests that no administrator sends
        self._stores = [
            StoreReader(store, config.paces.stores.limit_ms, self._clock) for store in config.stores
        ]
        self._transactions = TransactionReader(
            self._admin,
            self._clock,
            hanging_limit_ms=config.hanging_limit_ms,
            named_max=config.named_max,
            list_named=self._list_named,
        )

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot; its number is 0 before the first reading."""
        return self._publisher.snapshot

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every reading and every `follow`, and close the connections."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._publisher.close()
        await asyncio.gather(
            self._admin.close(), self._cluster.close(), *(store.close() for store in self._stores)
        )

    def follow(self) -> AsyncIterator[Snapshot]:
        """Yield the newest snapshot as often as there is one; a slow reader misses those in between."""
        return self._publisher.follow()

    def read_soon(self) -> None:
        """Read every part as soon as its load allows: a user has changed something and waits to see it."""
        for event in self._hurry.values():
            event.set()

    # ------------------------------------------------------------------------------ parts

    def _list_parts(self) -> list[Part]:
        config, paces = self._config, self._config.paces
        cluster = ClusterReader(self._admin, self._cluster)
        decisions = DecisionReader(self._cluster, config.decision_topics, paces.decisions.limit_ms)
        parts = [
            Part(
                name="cluster",
                pace=paces.cluster,
                read=cluster.read_cluster,
                find=lambda snapshot: snapshot.cluster,
                place=lambda snapshot, facts: replace(snapshot, cluster=facts),
            ),
            Part(
                name="transactions",
                pace=paces.transactions,
                read=self._transactions.read_open,
                find=lambda snapshot: snapshot.transactions,
                place=self._place_transactions,
            ),
            Part(
                name="topics",
                pace=paces.topics,
                read=cluster.read_topics,
                find=lambda snapshot: snapshot.topics,
                place=lambda snapshot, facts: replace(snapshot, topics=facts),
            ),
            Part(
                name="decisions",
                pace=paces.decisions,
                read=decisions.read,
                find=lambda snapshot: snapshot.pipelines,
                place=lambda snapshot, facts: replace(snapshot, pipelines=facts),
                follow_up=self._describe_changed,
            ),
        ]
        parts.append(self._group_part())
        parts += [
            Part(
                name=f"store {store.name}",
                pace=paces.stores,
                read=self._stores[index].read,
                find=partial(_find_store, index),
                place=partial(_place_store, index),
                follow_up=self._describe_changed,
            )
            for index, store in enumerate(config.stores)
        ]
        return parts

    def _group_part(self) -> Part:
        config, pace = self._config, self._config.paces.groups
        groups = GroupReader(
            self._admin,
            RecordCounter(self._cluster, pace.limit_ms),
            lambda: self._draft.topics.offsets,
            bytes_max=config.lag_bytes_max,
        )
        return Part(
            name="groups",
            pace=pace,
            read=groups.read,
            find=lambda snapshot: snapshot.groups,
            place=lambda snapshot, facts: replace(snapshot, groups=facts),
        )

    def _list_named(self) -> Mapping[str, object]:
        draft = self._draft
        return list_named_ids(draft.stores, join_prefixes(draft.pipelines.prefixes, draft.stores))

    async def _describe_changed(self) -> None:
        """Describe the ids whose rows have changed, so that row and description become visible together."""
        await self._transactions.describe_named(only_changed=True)
        self._place_named()

    def _place_transactions(self, snapshot: Snapshot, facts: TransactionFacts) -> Snapshot:
        """Place the transactions with the id of their cluster, which is read less often otherwise."""
        cluster_id, before = self._transactions.cluster_id, snapshot.cluster.cluster_id
        if cluster_id is None or cluster_id == before:
            return replace(snapshot, transactions=facts)
        if before is not None:
            self.read_soon()  # everything else is still of the cluster before
        return replace(snapshot, transactions=facts, cluster=replace(snapshot.cluster, cluster_id=cluster_id))

    def _place_named(self) -> None:
        facts = self._transactions.facts
        self._draft = replace(
            self._draft, transactions=replace(facts, status=self._draft.transactions.status)
        )

    # --------------------------------------------------------------------------- the loops

    async def _run(self) -> None:
        """Run the loops. An error in them, which is ours, ends every `follow`: nothing would be new."""
        try:
            await self._run_loops()
        except Exception:
            _log.exception("the collector has failed: nothing is read any more")
        finally:
            self._publisher.close()

    async def _run_loops(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish_changes())
            group.create_task(self._count_ids())
            parts = self._list_parts()
            self._untried = {part.name for part in parts}
            self._hurry = {part.name: asyncio.Event() for part in parts}
            for part in parts:
                group.create_task(self._repeat(part))

    async def _repeat(self, part: Part) -> None:
        hurry = self._hurry[part.name]
        while True:
            hurry.clear()
            began_ms = self._clock.monotonic_ms()
            await self._read(part)
            status: PartStatus = part.find(self._draft).status
            self._is_dirty.set()
            self._untried.discard(part.name)
            if not self._untried:
                self._all_tried.set()
            await self._rest(part.pace, began_ms, status, hurry)

    async def _read(self, part: Part) -> None:
        """Read a part once, and place it or the reason why it could not be read."""
        tried_ms, began_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        failure, facts, was_answered = "", None, False
        patience_ms = compute_patience_ms(part.pace, part.find(self._draft).status.took_ms)
        silence = asyncio.get_running_loop().call_later(
            patience_ms / 1000, self._note_silence, part, tried_ms
        )
        try:
            async with asyncio.timeout((part.pace.limit_ms + LIMIT_MARGIN_MS) / 1000):
                facts = await part.read()
        except TimeoutError:
            failure = f"{part.name}: not read within {part.pace.limit_ms} ms"
        except Exception as exc:  # of database drivers, too, which have no common base class
            if not isinstance(exc, TallystickError):
                _log.warning("%s could not be read", part.name, exc_info=True)
            failure, was_answered = f"{part.name}: {describe_failure(exc)}", isinstance(exc, REFUSALS)
        finally:
            silence.cancel()
        took_ms = self._clock.monotonic_ms() - began_ms
        before = part.find(self._draft)
        if facts is None:
            status = replace(
                before.status,
                tried_ms=tried_ms,
                took_ms=took_ms,
                away_since_ms=before.status.away_since_ms or tried_ms,
                failures=(failure,),
                was_answered=was_answered,
            )
            facts = before
        else:
            if before.status.is_away:
                took_ms = 0  # it has waited, and was no load
                self.read_soon()  # what kept this part away has kept others away, too
            status = PartStatus(
                read_ms=tried_ms, tried_ms=tried_ms, took_ms=took_ms, failures=facts.status.failures
            )
        self._draft = part.place(self._draft, replace(facts, status=status))
        if part.follow_up is not None and not failure:
            await part.follow_up()  # whose failures are of another part

    def _note_silence(self, part: Part, tried_ms: int) -> None:
        """Say of a part that the present attempt has had no answer for long; a reason that is known stays."""
        before = part.find(self._draft)
        status: PartStatus = before.status
        if status.is_away:
            return
        status = replace(
            status, tried_ms=tried_ms, away_since_ms=tried_ms, failures=(f"{part.name}: no answer yet",)
        )
        self._draft = part.place(self._draft, replace(before, status=status))
        self._is_dirty.set()

    async def _rest(self, pace: Pace, began_ms: int, status: PartStatus, hurry: asyncio.Event) -> None:
        """Wait until the part may be read again, or earlier if a user waits for it."""
        rest_max_ms, configured_ms = None, pace.interval_ms
        if status.failures:
            rest_max_ms = AWAY_REST_MS_MAX if status.is_away else PARTIAL_REST_MS_MAX
        if status.is_away:
            configured_ms = min(configured_ms, AWAY_INTERVAL_MS_MAX)
        for is_hurried in (True, False):
            interval_ms = compute_interval_ms(
                configured_ms,
                status.took_ms,
                rest_max_ms=rest_max_ms,
                is_hurried=is_hurried,
                rest_factor=pace.rest_factor,
            )
            left_ms = began_ms + interval_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                continue
            if is_hurried:
                await asyncio.sleep(left_ms / 1000)
                continue
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await hurry.wait()
            except TimeoutError:
                return

    async def _count_ids(self) -> None:
        """Count all ids, and describe those again that were described longest ago."""
        pace = self._config.paces.named_ids
        while True:
            began_ms = self._clock.monotonic_ms()
            try:
                async with asyncio.timeout(pace.limit_ms / 1000):
                    await self._transactions.count_ids()
                    await self._transactions.describe_named(only_changed=False)
            except (TallystickError, TimeoutError) as exc:  # the part of transactions says what is wrong
                _log.debug("ids could not be counted: %s", exc)
            self._place_named()
            self._is_dirty.set()
            took_ms = self._clock.monotonic_ms() - began_ms
            interval_ms = compute_interval_ms(pace.interval_ms, took_ms, rest_factor=pace.rest_factor)
            await asyncio.sleep(max(0, interval_ms - took_ms) / 1000)

    async def _publish_changes(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_MS_MAX / 1000):
                await self._all_tried.wait()
        while True:
            await self._wait_for_change()
            self._is_dirty.clear()
            self._draft = replace(self._draft, number=self.snapshot.number + 1, at_ms=self._clock.now_ms())
            began_ms = self._clock.monotonic_ms()
            self._publisher.publish(_join_pipelines(self._draft))
            await asyncio.sleep(0)  # the followers' turn: judging ten thousand transactions takes 0.3 s
            took_ms = self._clock.monotonic_ms() - began_ms
            interval_ms = compute_interval_ms(self._config.publish_ms, took_ms)
            await asyncio.sleep(min(interval_ms, PUBLISH_MS_MAX) / 1000)

    async def _wait_for_change(self, again_ms: int = AGAIN_MS) -> None:
        """Wait for something new to publish; while a part is away, no longer than `again_ms`."""
        is_away = any(status.is_away for status in self._draft.list_statuses())
        with suppress(TimeoutError):
            async with asyncio.timeout(again_ms / 1000 if is_away else None):
                await self._is_dirty.wait()


def _join_pipelines(draft: Snapshot) -> Snapshot:
    """Return the snapshot with the decisions of stores added to those of its topics."""
    prefixes = join_prefixes(draft.pipelines.prefixes, draft.stores)
    return replace(draft, pipelines=replace(draft.pipelines, prefixes=prefixes))


def _find_store(index: int, snapshot: Snapshot) -> StoreFacts:
    return snapshot.stores[index]


def _place_store(index: int, snapshot: Snapshot, facts: StoreFacts) -> Snapshot:
    stores = (*snapshot.stores[:index], facts, *snapshot.stores[index + 1 :])
    return replace(snapshot, stores=stores)


class Publisher:
    """Hands snapshots to any number of followers. Belongs to one event loop.

    A snapshot replaces the one before. A follower that is slow misses those in between, and neither it nor
    one that has stopped reading keeps the others waiting.
    """

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        """Begin with a snapshot that no follower is given, because nothing in it has been read."""
        self.snapshot = snapshot or Snapshot()
        self._is_closed = False
        self._changed = asyncio.Event()

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the snapshot and wake the followers."""
        self.snapshot = snapshot
        self._wake()

    def close(self) -> None:
        """End every `follow`."""
        self._is_closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[Snapshot]:
        """Yield the present snapshot, once there is one, and then the newest as often as it changes."""
        seen = 0
        while not self._is_closed:
            snapshot, changed = self.snapshot, self._changed
            if snapshot.number > seen:
                seen = snapshot.number
                yield snapshot
            else:
                await changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
