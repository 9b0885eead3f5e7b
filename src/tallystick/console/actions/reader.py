"""Reads what is true now, for one action: its transaction, group or prefix, every store and every decision.

Nothing comes from the collector's snapshot. A store's rows are read before the cluster is asked, as recovery
does [DW-5], and by connections that may change nothing.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

from tallystick import spark
from tallystick.admin import aio
from tallystick.admin.client import Admin
from tallystick.admin.errors import NothingOpen
from tallystick.admin.model import TransactionDescription
from tallystick.admin.resets import ShiftBy, plan_reset
from tallystick.admin.start_offsets import (
    FROM_BEGINNING,
    FROM_END,
    AtOffset,
    AtTimestamp,
    StartSpec,
    list_partitions,
)
from tallystick.admin.topics import LATEST
from tallystick.admin.txn import completion
from tallystick.admin.txn.transaction_requests import list_open
from tallystick.admin.txn.transactions import AbortSpec
from tallystick.client.errors import BrokerRefused, ClientError, IdExpired, NotAuthorized, NotSupported
from tallystick.client.net.cluster import Cluster
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.console.actions.config import ActionConfig
from tallystick.console.actions.readings import (
    AbortReading,
    CannotRead,
    CompletionOutlook,
    OffsetMove,
    PrefixReading,
    Reading,
    ResetReading,
    RowsReading,
    TransactionReading,
    narrow_prefixes,
    narrow_stores,
)
from tallystick.console.actions.request import (
    AbortPartition,
    ActionRequest,
    CompleteByState,
    ForceTerminate,
    ResetOffsets,
    ResetTarget,
    ResolvePrefix,
    ResolveRow,
    ResolveRows,
)
from tallystick.console.actions.results import describe_exception
from tallystick.console.collect.decision_reader import DecisionReader, join_prefixes
from tallystick.console.collect.store_reader import NotRead, StoreAddress, StoreReader
from tallystick.console.collect.store_thread import StillBusy, StoreThread
from tallystick.console.model.snapshot import (
    ClusterFacts,
    PartStatus,
    PipelineFacts,
    Snapshot,
    StoreFacts,
    TransactionFacts,
)
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import replace
from tallystick.spark.options.option_table import DECISIONS_TOPIC
from tallystick.spark.protocol.coordinator import PrefixStatus
from tallystick.spark.protocol.transactional_ids import DATABASE_SUFFIX

T = TypeVar("T")

WAITING_MAX: Final = 16
PARTITIONS_MAX: Final = 500
"""So many partitions of a transaction are asked for its first offset."""


class ActionReader:
    """Reads for one dry run at a time. Belongs to one event loop."""

    def __init__(self, config: ActionConfig, clock: Clock) -> None:
        """Prepare the readings without connecting. Raises: BadConfig."""
        self._config, self._clock = config, clock
        self._admin = aio.Admin(config.reader_settings)
        self._cluster = Cluster(self._admin.config.client)
        limit_ms = config.read_limit_ms // 2
        self._stores = [(store, StoreReader(store, limit_ms, clock)) for store in config.stores]
        self._decisions = DecisionReader(self._cluster, config.decision_topics, limit_ms)
        self._thread = StoreThread("the reading for an action", clock)
        self._turn = asyncio.Lock()
        self._waiting_count = 0

    async def close(self) -> None:
        """Close every connection."""
        self._thread.close()
        await asyncio.gather(
            self._admin.close(), self._cluster.close(), *(reader.close() for _, reader in self._stores)
        )

    async def read(self, request: ActionRequest) -> Reading:
        """Read what an action needs. Raises: CannotRead."""
        if self._waiting_count >= WAITING_MAX:
            raise CannotRead(f"{WAITING_MAX} other dry runs wait to be read")
        self._waiting_count += 1
        try:
            async with self._turn, asyncio.timeout(self._config.read_limit_ms / 1000):
                reading = await self._read(request)
                return replace(reading, cluster_id=(await self._admin.describe_cluster()).cluster_id)
        except TimeoutError as exc:
            raise CannotRead(f"not read within {self._config.read_limit_ms} ms") from exc
        except CannotRead:
            raise
        except TallystickError as exc:
            text = exc.what() if isinstance(exc, ClientError) else str(exc)
            raise CannotRead(" ".join(text.split())) from exc
        finally:
            self._waiting_count -= 1

    async def _read(self, request: ActionRequest) -> Reading:
        match request:
            case ResolveRow() | ForceTerminate():
                reading, _ = await self._read_transaction(request.transactional_id)
                return reading
            case ResolveRows():
                pairs = await self._read_transactions(request.transactional_ids)
                return RowsReading(readings=tuple(reading for reading, _ in pairs))
            case CompleteByState():
                return await self._read_completion(request)
            case AbortPartition():
                return await self._read_abort(request)
            case ResolvePrefix():
                return await self._read_prefix(request)
            case ResetOffsets():
                return await self._run_in_thread(lambda: self._read_reset(request))

    async def _run_in_thread(self, function: Callable[[], T]) -> T:
        """Call what has no asynchronous form; errors that are not the client's become CannotRead."""
        try:
            return await self._thread.run(function)
        except TallystickError:
            raise
        except Exception as exc:  # database drivers have no common base class
            raise CannotRead(describe_exception(exc)) from exc

    # ------------------------------------------------------------------------- one transaction

    async def _read_transaction(self, name: str) -> tuple[TransactionReading, TransactionDescription | None]:
        (pair,) = await self._read_transactions([name])
        return pair

    async def _read_transactions(
        self, names: Sequence[str]
    ) -> list[tuple[TransactionReading, TransactionDescription | None]]:
        stores = tuple(await asyncio.gather(*(self._read_store(*each) for each in self._stores)))
        pipelines = await self._read_decisions(stores)
        cluster = await self._admin.describe_cluster()
        answers = await self._admin.describe_transactions(names)
        for failure in answers.failures.values():
            if not isinstance(failure, IdExpired | NotAuthorized | NotSupported):
                raise failure
        status = PartStatus(read_ms=self._clock.now_ms())
        shared = Snapshot(
            at_ms=self._clock.now_ms(),
            bootstrap_servers=self._config.bootstrap_servers,
            cluster=ClusterFacts(status=status, cluster_id=cluster.cluster_id),
            transactions=TransactionFacts(status=status),
            stores=stores,
            pipelines=pipelines,
        )
        unknown_ids = {name for name, each in answers.failures.items() if isinstance(each, IdExpired)}
        readings = await asyncio.gather(
            *(self._read_one(name, answers.found.get(name), unknown_ids, shared) for name in names)
        )
        return [(reading, answers.found.get(reading.transactional_id)) for reading in readings]

    async def _read_one(
        self,
        name: str,
        description: TransactionDescription | None,
        unknown_ids: Collection[str],
        shared: Snapshot,
    ) -> TransactionReading:
        """Narrow what was read of all to one id, and add its partitions."""
        snapshot = replace(
            shared,
            transactions=replace(
                shared.transactions,
                descriptions={} if description is None else {name: description},
                unknown_ids=frozenset({name}.intersection(unknown_ids)),
            ),
            stores=narrow_stores(shared.stores, name),
            pipelines=replace(shared.pipelines, prefixes=narrow_prefixes(shared.pipelines.prefixes, name)),
        )
        reading = TransactionReading(snapshot=snapshot, transactional_id=name)
        if description is None or description.state != "Ongoing":
            return reading
        return await self._add_partitions(reading, description)

    async def _add_partitions(
        self, reading: TransactionReading, description: TransactionDescription
    ) -> TransactionReading:
        """Add where its data begins and where its partitions end, as far as their leaders answer."""
        partitions = sorted(description.partitions)[:PARTITIONS_MAX]
        producers = await self._admin.describe_producers(partitions)
        ends = await self._admin.list_offsets(dict.fromkeys(producers.found, LATEST))
        return replace(
            reading,
            open_transactions=tuple(
                each
                for at, states in sorted(producers.found.items())
                for each in list_open(at, states)
                if each.writer == description.writer
            ),
            ends={at: end.offset for at, end in ends.found.items() if end is not None},
        )

    async def _read_store(self, store: StoreAddress, reader: StoreReader) -> StoreFacts:
        """Read a store; one that cannot be read says so in its status, and keeps no other from being read."""
        limit_ms = self._config.read_limit_ms // 2
        try:
            async with asyncio.timeout(limit_ms / 1000):
                facts = await reader.read()
        except (NotRead, StillBusy, TimeoutError) as exc:
            text = str(exc) or f"not read within {limit_ms} ms"
            return StoreFacts(name=store.name, kind=store.kind, status=PartStatus(failures=(text,)))
        return replace(facts, status=replace(facts.status, read_ms=self._clock.now_ms()))

    async def _read_decisions(self, stores: Collection[StoreFacts]) -> PipelineFacts:
        try:
            facts = await self._decisions.read()
        except ClientError as exc:
            facts = PipelineFacts(status=PartStatus(failures=(exc.what(),)))
        return replace(facts, prefixes=join_prefixes(facts.prefixes, stores))

    async def _read_completion(self, request: CompleteByState) -> TransactionReading:
        reading, description = await self._read_transaction(request.transactional_id)
        if description is None:
            return reading
        version = (await self._admin.describe_features()).get("transaction.version", 0)
        outcome = completion.decide_outcome(PreparedTxnState(request.state), description, version)
        outlook = CompletionOutlook(
            outcome=outcome.name.lower(), text=outcome.value, sends_request=outcome.sends_request
        )
        return replace(reading, completion=outlook)

    async def _read_abort(self, request: AbortPartition) -> AbortReading:
        spec = AbortSpec(partition=request.partition, start_offset=request.start_offset)
        try:
            plan = await self._admin.plan_abort(spec)
        except NothingOpen as exc:
            return AbortReading(case=None, missing=exc.found)
        ends = await self._admin.list_offsets({request.partition: LATEST})
        end = ends.found.get(request.partition)
        owner = None
        if plan.case.description is not None:
            owner, _ = await self._read_transaction(plan.case.description.transactional_id)
        # How long it has been open changes with every reading, and decides nothing here.
        case = replace(plan.case, idle_ms=None, open_ms=None)
        return AbortReading(
            case=case, guarded=plan.guarded, owner=owner, end=None if end is None else end.offset
        )

    # ------------------------------------------------------------------------- prefixes, groups

    async def _read_prefix(self, request: ResolvePrefix) -> PrefixReading:
        source = DECISIONS_TOPIC
        if request.store is None:
            facts = await self._decisions.read()
            known = {each.prefix: each.source for each in facts.prefixes}
            source = known.get(request.prefix, source)
        else:
            source = self._config.find_store(request.store).name
        status = await self._run_in_thread(
            lambda: run_prefix(self._config, request, source=source, dry_run=True)
        )
        return PrefixReading(
            source=source,
            decision=status.decision,
            outcomes=status.outcomes,
            undecided_ids=status.undecided_ids,
            lost_ids=status.lost_ids,
        )

    def _read_reset(self, request: ResetOffsets) -> ResetReading:
        group_id = request.group_id
        with Admin(self._config.reader_settings) as admin:
            described = admin.describe_groups([group_id])
            failure = described.failures.get(group_id)
            if isinstance(failure, BrokerRefused) and failure.code == ErrorCode.GROUP_ID_NOT_FOUND:
                return ResetReading(group=None, moves={})
            offsets = admin.describe_group_offsets([group_id]).one(group_id)
            partitions = tuple(sorted(offsets.committed))
            if request.topics:
                named = request.list_topics().items()
                partitions = tuple(
                    at for topic, numbers in named for at in list_partitions(admin, [topic], numbers)
                )
            moves = plan_reset(admin, group_id, partitions, build_spec(request))
            return ResetReading(
                group=described.one(group_id),
                moves={
                    at: OffsetMove(current=move.current, target=move.target) for at, move in moves.items()
                },
                pending=offsets.pending & frozenset(partitions),
            )


def build_spec(request: ResetOffsets) -> StartSpec | ShiftBy:
    """Return what `admin.resets` plans by."""
    value = request.parse_value()
    match request.target:
        case ResetTarget.EARLIEST:
            return FROM_BEGINNING
        case ResetTarget.LATEST:
            return FROM_END
        case ResetTarget.OFFSET:
            return AtOffset(value)
        case ResetTarget.DATETIME:
            return AtTimestamp(value)
        case ResetTarget.SHIFT:
            return ShiftBy(value)


def run_prefix(config: ActionConfig, request: ResolvePrefix, *, source: str, dry_run: bool) -> PrefixStatus:
    """Inspect or resolve a prefix, where its decisions are.

    Args:
        source: the topic of its decisions; not used if a database has them.
    """
    if request.store is None:
        return spark.resolve(request.prefix, config.spark_settings, dry_run=dry_run, decisions=source)
    prefix = request.prefix.removesuffix(DATABASE_SUFFIX)
    url = config.find_store(request.store).url
    return spark.resolve_rows(prefix, config.spark_settings, url, dry_run=dry_run)
