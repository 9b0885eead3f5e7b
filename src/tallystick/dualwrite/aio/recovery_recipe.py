"""The recipe of recovery: bring both sides of every id of a writer to the same outcome.

Recovery claims before it reads the row, and reads the row before it asks Kafka [DW-5]; then it describes the
id before it initialises it. A cluster's transaction is finished only after every halting verdict has been
ruled out, and only if the row is still ours once the id is initialised [DW-9]: the claim keeps earlier
writers from deciding, that check detects later ones, and a writer that claims after the check initialises the
id after us.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from tallystick.client.aio.producer import Producer
from tallystick.client.errors import ClientError, DecisionExpired
from tallystick.client.transactions.modes import TxnDescription
from tallystick.dualwrite import tracing
from tallystick.dualwrite.aio.participants import AsyncClusterViews, AsyncStoreClient
from tallystick.dualwrite.block.branch import ClusterBranch, never_expires
from tallystick.dualwrite.block.headers import find_open_headers_async
from tallystick.dualwrite.block.life import BlockOutcome
from tallystick.dualwrite.block.steps import AsyncStepRunner
from tallystick.dualwrite.errors import DatabaseBehind, HeuristicMixed, RecoveryHalted
from tallystick.dualwrite.rules import conclusions
from tallystick.dualwrite.rules.model import NOTHING, StoredState
from tallystick.dualwrite.rules.recovery import (
    VERDICTS,
    ClusterSide,
    Finding,
    RecoveredId,
    Report,
    Verdict,
    compare_sides,
)
from tallystick.dualwrite.stores.base import AsyncStoreTransaction
from tallystick.kernel.check import require
from tallystick.kernel.errors import InDoubt

D = TypeVar("D", bound=AsyncStoreTransaction)
E = TypeVar("E", bound=Exception)

_log = logging.getLogger("tallystick.dualwrite")

# Errors for sides that differ for good; an operator repairs them and passes accept_mixed.
_CONTRADICTION_ERRORS: Final[
    Mapping[Finding, Callable[[StoredState, TxnDescription | None], HeuristicMixed | DatabaseBehind]]
] = {
    Finding.FORCED: lambda row, _: conclusions.heuristic_mixed_error(row),
    Finding.OVERRULED: conclusions.overruled_error,
    Finding.BEHIND: conclusions.database_behind_error,
    Finding.UNKNOWN_HERE: conclusions.unknown_here_error,
}
LOOKS_MAX: Final = 10
"""How often a look is repeated while a writer commits."""
_SETTLED_FIRST: Final = frozenset({Finding.FINISHED, Finding.STALE, *_CONTRADICTION_ERRORS})


class AsyncRecovery(Generic[D]):
    """Recovery of a writer's ids, and the producers that it creates and discards."""

    def __init__(
        self,
        branches: Sequence[ClusterBranch[Producer]],
        *,
        database: AsyncStoreClient[D],
        clusters: AsyncClusterViews,
        create_producer: Callable[[Mapping[str, object]], Producer],
        outcome: BlockOutcome,
        steps: AsyncStepRunner,
    ) -> None:
        self._branches = branches
        self._database = database
        self._clusters = clusters
        self._create_producer = create_producer
        self._outcome = outcome
        self._steps = steps

    async def recover(self, *, accept_mixed: bool) -> Report:
        """Claim every id in the database; describe it; halt where that is right; only then change Kafka."""
        rows_before = {branch.id: branch.row for branch in self._branches}
        try:
            return await self._recover_known(rows_before, accept_mixed=accept_mixed)
        except BaseException:
            for branch in self._branches:  # the next recovery compares with it too
                branch.row = rows_before[branch.id] or branch.row
            raise

    async def _recover_known(
        self, rows_before: Mapping[str, StoredState | None], *, accept_mixed: bool
    ) -> Report:
        # KIP-939 fences the earlier producer in Kafka only. The claim fences it in the database too, so that
        # no row can come to name the open transaction after it was read.
        for branch in self._branches:
            await self._database.claim(branch)
        self._outcome.resolve({branch.id: branch.require_row() for branch in self._branches}, rows_before)
        sides: list[tuple[ClusterBranch[Producer], ClusterSide, Finding]] = []
        for branch in self._branches:
            side = await self._clusters.describe(branch)
            finding = compare_sides(branch.row_as_finished(), side, rows_before[branch.id])
            sides.append((branch, side, finding))
        # One decision counts for all clusters: none is changed while another one contradicts the database.
        for branch, side, finding in sides:
            conclusions.raise_if_halted(branch.require_row(), side, finding)
        ids: list[RecoveredId] = []
        differ: list[HeuristicMixed | DatabaseBehind] = []
        for branch, side, finding in sides:
            try:
                ids.append(await self._finish_traced(branch, side, finding, accept_mixed=accept_mixed))
            except (HeuristicMixed, DatabaseBehind) as exc:  # finish the other clusters first
                differ.append(exc)
        if differ:
            raise conclusions.combine_contradictions(differ)
        return Report(tuple(ids))

    async def inspect(self) -> Report:
        """Report what recovery would find, without claim, InitProducerId or any change. May be outdated."""
        ids = []
        for branch in self._branches:
            row, side = await self._read_both(branch)
            finding = compare_sides(row, side)
            verdict = VERDICTS[finding, branch.strongest_mode]
            action = f"would {conclusions.ACTION_PLANNED[verdict]}"
            ids.append(conclusions.report_line(row, side, finding, verdict, action))
        return Report(tuple(ids))

    async def _read_both(self, branch: ClusterBranch[Producer]) -> tuple[StoredState, ClusterSide]:
        """Read both sides at one moment: the row is the same before and after the cluster was asked.

        Otherwise a writer that works between the two looks like a database that lacks a commit.
        """
        before = await self._database.read(branch.id)
        side = await self._clusters.describe(branch)
        row = await self._database.read(branch.id)
        for _ in range(LOOKS_MAX):
            if row == before:
                break
            side = await self._clusters.describe(branch)
            before, row = row, await self._database.read(branch.id)
        return row, side

    async def _finish_traced(
        self, branch: ClusterBranch[Producer], side: ClusterSide, finding: Finding, *, accept_mixed: bool
    ) -> RecoveredId:
        with tracing.trace_finish(branch.id) as trace:
            if tracing.tracer is not None and side.open_transaction is not None:
                # While it is open: once ended, it can no longer be found by its id.
                trace.link_headers(await find_open_headers_async(branch.admin_config, branch.id))
            line = await self._finish_branch(branch, side, finding, accept_mixed=accept_mixed)
            trace.set_finding(finding.name, line.action)
            return line

    async def _finish_branch(
        self, branch: ClusterBranch[Producer], side: ClusterSide, finding: Finding, *, accept_mixed: bool
    ) -> RecoveredId:
        row = branch.require_row()
        token = branch.row_as_finished().pending
        if finding in _CONTRADICTION_ERRORS:
            if not accept_mixed:
                # A writer that claimed the row meanwhile may have committed what seems to be too much.
                await self._database.check_owner(branch)
                raise await self._name_keys(row, _CONTRADICTION_ERRORS[finding](row, side.txn_state))
            _log.warning(
                "%s: accepted: %s",
                branch.id,
                await self._name_keys(row, _CONTRADICTION_ERRORS[finding](row, side.txn_state)),
            )
            token = NOTHING
        if finding in _SETTLED_FIRST or not token:
            await self._database.record_settled(
                branch, settled=True
            )  # before InitProducerId erases the proof
        elif finding in (Finding.DECIDED, Finding.UNSEEN):
            await self._database.record_settled(branch, settled=False)
        producer = self._create_producer(branch.config)
        branch.set_producer(producer)
        # KIP-939: keepPreparedTxn=true fences the former producer and leaves its prepared transaction open.
        await self._steps.run("init", branch.id, producer.init_transactions, True)
        mode = require(producer.mode, "a recovered producer without a mode")
        await self._database.check_owner(branch)
        verdict = VERDICTS[finding, mode]
        if verdict is Verdict.HALT:
            raise RecoveryHalted(
                f"{branch.id}: {finding.value}, and mode {mode.value} rests on what it shows"
            )
        if producer.in_doubt and not (row.state or row.known or accept_mixed):  # it was not described
            raise conclusions.unknown_here_error(row, None)
        if token and producer.in_doubt and producer.in_doubt != token:
            # Its former writer has finished the named one since the description, and begun another. The abort
            # would hide that [DW-13].
            await self._database.record_settled(branch, settled=True)
        try:
            # KIP-939: completeTransaction commits if `token` names the transaction in doubt, else aborts.
            completion = await self._steps.run("complete", branch.id, producer.complete_transaction, token)
        except DecisionExpired as exc:
            raise await self._name_keys(row, conclusions.heuristic_mixed_error(row)) from exc
        await self._database.record_settled(branch, settled=True)
        await self._database.record_known(branch)
        branch.last_finished = branch.require_row().state
        return conclusions.report_line(row, side, finding, verdict, conclusions.ACTION_DONE[completion])

    async def _name_keys(self, row: StoredState, error: E) -> E | HeuristicMixed:
        """Return the error with the idempotency keys that it is about, if it is HeuristicMixed."""
        if not isinstance(error, HeuristicMixed):
            return error
        return conclusions.add_keys(error, await self._database.find_keys(row))

    async def drop_producers(self) -> None:
        """Close the current producers; transactions prepared or in doubt stay as they are [CLI-62]."""
        for branch in self._branches:
            row, producer = branch.row, branch.detach_producer()
            if producer is None:
                continue
            # An abort would hide how `row` ended: recovery notes that first, then ends what is open [DW-13].
            abort = not never_expires(producer.mode) or row is None or not row.pending
            try:
                await self._steps.run("close producer", branch.id, producer.close, abort=abort)
            except (ClientError, InDoubt) as exc:
                _log.warning("%s: its former producer did not close: %s", branch.id, exc)
