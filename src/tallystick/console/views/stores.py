"""The databases that decide: what each has committed, what is still open in Kafka, and leases. Pure."""

from typing import Final

from tallystick.console.model import commands
from tallystick.console.model.snapshot import StoreFacts
from tallystick.console.model.state import ConsoleState
from tallystick.console.model.transactions import AssessedTransaction, find_oldest_ms
from tallystick.console.views.page import PageInfo, describe_page
from tallystick.console.views.refusals import NoWrites, list_refusals
from tallystick.console.views.texts import format_identity
from tallystick.console.views.transactions import build_key
from tallystick.dualwrite.rules.leases import LeaseRow, LeaseState
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.value import Value

ROWS_MAX: Final = 100
"""Rows of a store that a page of the browser shows one by one: those of open transactions first."""


class StoredRow(Value, kw_only=True):
    """A state row. `health` and `reason` are those of the open transaction of its id, if there is one."""

    transactional_id: str
    stored_state: str
    is_settled: bool
    started_ms: int | None
    timeout_ms: int | None
    lease: str
    lease_holder: str
    health: str
    reason: str
    key: str


class PreparedInServer(Value, kw_only=True):
    """A prepared transaction of the database server itself, of whichever program."""

    gid: str
    owner: str
    database: str
    age_ms: int | None


class StoreView(Value, kw_only=True):
    """One store. `row_count` counts all rows, `rows` holds the first of them.

    refusal          why it takes no writes, and what to do; "" if it does
    prefixes         of the Spark queries that decide in it
    resolve_command  ends what its dead writers have left open; "" if it has no rows
    """

    name: str
    kind: str
    engine: str
    is_reachable: bool
    refusal: str
    failures: tuple[str, ...]
    age_ms: int | None
    took_ms: int
    row_count: int
    open_count: int
    undecided_oldest_ms: int | None
    expired_lease_count: int
    prefixes: tuple[str, ...]
    resolve_command: str
    rows: tuple[StoredRow, ...]
    server_prepared: tuple[PreparedInServer, ...]


class StoresPage(Value, kw_only=True):
    """All stores."""

    info: PageInfo
    stores: tuple[StoreView, ...]


def build_stores(state: ConsoleState, now_ms: int, *, rows_max: int = ROWS_MAX) -> StoresPage:
    """Build the page of the stores, with `rows_max` rows of each."""
    snapshot = state.snapshot
    statuses = [store.status for store in snapshot.stores]
    if statuses:  # beside each row stands its open transaction
        statuses.append(snapshot.transactions.status)
    refusals = list_refusals(snapshot)
    return StoresPage(
        info=describe_page("Stores", snapshot, statuses, now_ms),
        stores=tuple(_view_store(state, store, refusals, now_ms, rows_max) for store in snapshot.stores),
    )


def _view_store(
    state: ConsoleState, store: StoreFacts, refusals: tuple[NoWrites, ...], now_ms: int, rows_max: int
) -> StoreView:
    transactions = {
        each.views.store.row.transactional_id: each
        for each in state.transactions
        if each.views.store is not None and each.views.store.store.name == store.name
    }
    rows = sorted(
        store.rows.values(), key=lambda row: (row.transactional_id not in transactions, row.transactional_id)
    )
    leases = {lease.transactional_id: lease for lease in store.leases}
    servers = state.snapshot.bootstrap_servers
    return StoreView(
        name=store.name,
        kind=store.kind.value,
        engine=store.engine,
        is_reachable=store.status.is_complete,
        refusal=next((each.reason for each in refusals if each.subject == store.name), ""),
        failures=store.status.failures,
        age_ms=max(0, now_ms - store.status.read_ms) if store.status.read_ms else None,
        took_ms=store.status.took_ms,
        row_count=len(rows),
        open_count=sum(each.is_open for each in transactions.values()),
        undecided_oldest_ms=find_oldest_ms((each for each in transactions.values() if each.is_open), now_ms),
        expired_lease_count=sum(
            lease.classify(store.lease_now_ms) is LeaseState.EXPIRED for lease in store.leases
        ),
        prefixes=tuple(each.prefix for each in store.prefixes),
        resolve_command=commands.format_command(
            servers, "transactions", "resolve", "--store", store.name, "--dry-run"
        )
        if rows
        else "",
        rows=tuple(
            _view_row(
                row,
                transactions.get(row.transactional_id),
                *_describe_lease(leases.get(row.transactional_id), store.lease_now_ms),
            )
            for row in rows[:rows_max]
        ),
        server_prepared=tuple(
            PreparedInServer(
                gid=each.gid,
                owner=each.owner,
                database=each.database,
                age_ms=None if each.prepared_ms is None else max(0, now_ms - each.prepared_ms),
            )
            for each in store.server_prepared
        ),
    )


def _describe_lease(lease: LeaseRow | None, now_ms: int) -> tuple[str, str]:
    return ("", "") if lease is None else (lease.classify(now_ms).name.lower(), lease.holder_info)


def _view_row(
    row: StoredState, transaction: AssessedTransaction | None, lease: str, holder: str
) -> StoredRow:
    identity = row.state.identity
    return StoredRow(
        transactional_id=row.transactional_id,
        stored_state="" if identity is None else format_identity(identity),
        is_settled=row.settled,
        started_ms=row.started_at_ms,
        timeout_ms=row.timeout_ms,
        lease=lease,
        lease_holder=holder,
        health="" if transaction is None else transaction.health.value,
        reason="" if transaction is None else transaction.assessment.reason,
        key=row.transactional_id if transaction is None else build_key(transaction),
    )
