"""Leases in every store that keeps them, on its real database."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.support import dual_write_stores as stores
from tests.support.dual_write_stores import ASYNC, Place

from tallystick.client.errors import NotSupported
from tallystick.dualwrite import AsyncSqlStore, BadStore, Lease, LeaseLost, RocksStore, SqlStore, WriterPool
from tallystick.dualwrite.rules.leases import LeaseRow, LeaseState, LeaseTaking, choose_leases
from tallystick.kernel.value import replace
from tallystick.testing.store_suite import CallRunner

KINDS = [
    "sqlite",
    *(
        pytest.param(each, marks=[pytest.mark.server, pytest.mark.slow])
        for each in ("postgresql+psycopg", "mysql+pymysql", *ASYNC, "django")
    ),
]
FIRST = LeaseRow(transactional_id="pay-0", base="pay", number=0, holder="a", holder_info="host a")
DURATION_MS = 60_000


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind = request.param
    if kind.startswith("sqlite"):
        made = Place(kind, f"sqlite:///{tmp_path / 'rows.db'}")
    else:
        server = request.getfixturevalue("mariadb" if kind.startswith("mysql") else "postgresql")
        made = Place(kind, server.url(server.new_database()))
    stores.create(made)
    return made


@pytest.fixture
def runner() -> Iterator[CallRunner]:
    runner = CallRunner()
    yield runner
    runner.close()


@pytest.fixture
def store(place: Place, runner: CallRunner) -> Iterator["Leases"]:
    if place.is_async:
        engine = create_async_engine(place.url)
        yield Leases(AsyncSqlStore(engine), runner, place)
        runner.call(engine.dispose)
        return
    with stores.opened(place) as opened:
        yield Leases(opened, runner, place)


class Leases:
    """A store's leases, blocking or not."""

    def __init__(self, store: Any, runner: CallRunner, place: Place) -> None:
        self._store = store
        self._calls = runner
        self._place = place

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)
        return lambda *args: self._calls.call(method, *args)

    def take(self, row: LeaseRow, former: LeaseRow | None, duration_ms: int = DURATION_MS) -> bool:
        taken: bool = self.take_lease(LeaseTaking(row=row, former=former, duration_ms=duration_ms))
        return taken

    def only(self) -> LeaseRow:
        (row,) = self.read_leases("pay").rows
        assert isinstance(row, LeaseRow)
        return row

    def expire(self, transactional_id: str) -> None:
        """Let a lease be over, as if its time had passed."""
        with stores.closing_engine(self._place) as engine, engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE kafka_transactional_id_leases SET expires_at_ms = 1 "
                    f"WHERE transactional_id = '{transactional_id}'"
                )
            )


@pytest.mark.gate(2)
def test_a_new_number_is_taken_once_and_lasts_as_long_as_asked_for(store: Leases) -> None:
    before_ms = store.read_leases("pay").now_ms
    assert store.take(FIRST, None)
    assert not store.take(replace(FIRST, holder="b"), None)
    leases = store.read_leases("pay")
    (row,) = leases.rows
    assert row == replace(FIRST, expires_at_ms=row.expires_at_ms)
    assert before_ms + DURATION_MS <= row.expires_at_ms <= leases.now_ms + DURATION_MS
    assert row.classify(leases.now_ms) is LeaseState.HELD


@pytest.mark.gate(1)
def test_the_time_is_the_same_as_every_other_databases(store: Leases, tmp_path: Path) -> None:
    """Milliseconds since 1970 in UTC, whatever the time zone of server or session."""
    with stores.opened(Place("sqlite", f"sqlite:///{tmp_path / 'other.db'}")) as other:
        other.create()
        before_ms = other.read_leases().now_ms
        now_ms = store.read_leases().now_ms
        after_ms = other.read_leases().now_ms
    assert before_ms - 1 <= now_ms <= after_ms + 1


@pytest.mark.gate(1)
def test_a_lease_is_taken_over_only_if_it_is_as_it_was_read(store: Leases) -> None:
    """[DW-15] A renewal in between, or another pool, wins."""
    assert store.take(FIRST, None)
    read = store.only()
    second = replace(FIRST, holder="b", holder_info="host b")
    assert not store.take(second, replace(read, expires_at_ms=read.expires_at_ms - 1))
    assert not store.take(second, replace(read, holder="c"))
    assert store.only() == read
    assert store.take(second, read)
    assert store.only().holder == "b"
    assert not store.take(replace(FIRST, holder="c"), read)


@pytest.mark.gate(1)
def test_a_renewal_prolongs_what_is_still_the_holders_and_says_what_is(store: Leases) -> None:
    others = replace(FIRST, transactional_id="pay-1", number=1, holder="b")
    kept = replace(FIRST, transactional_id="pay-2", number=2)
    for row in (FIRST, others, kept):
        assert store.take(row, None, 1_000)
    before = {row.number: row.expires_at_ms for row in store.read_leases("pay").rows}
    assert store.renew_leases(["pay-0", "pay-1", "pay-7"], "a", 500_000) == {"pay-0", "pay-2"}
    after = {row.number: row.expires_at_ms for row in store.read_leases("pay").rows}
    assert after[0] > before[0] + 400_000
    assert (after[1], after[2]) == (before[1], before[2])
    assert store.renew_leases([], "nobody", 1) == frozenset()


@pytest.mark.gate(2)
def test_an_expired_lease_without_another_owner_is_renewed(store: Leases) -> None:
    assert store.take(FIRST, None)
    store.expire("pay-0")
    leases = store.read_leases("pay")
    assert [row.number for row in leases.select(LeaseState.EXPIRED)] == [0]
    assert store.renew_leases(["pay-0"], "a", DURATION_MS) == {"pay-0"}
    assert not store.read_leases("pay").select(LeaseState.EXPIRED)


@pytest.mark.gate(2)
def test_a_lease_is_given_back_by_its_holder_alone(store: Leases) -> None:
    assert store.take(FIRST, None)
    store.release_lease("pay-0", "b")
    assert store.only().holder == "a"
    store.release_lease("pay-0", "a")
    free = replace(FIRST, holder="", holder_info="", expires_at_ms=0)
    assert store.only() == free
    assert store.take(replace(FIRST, holder="b"), free)


@pytest.mark.gate(1)
def test_leases_of_other_names_are_left_out(store: Leases) -> None:
    """Names are compared byte by byte."""
    for base in ("pay", "PAY", "pay ", "pay-1"):
        assert store.take(replace(FIRST, transactional_id=f"{base}-0", base=base), None)
    assert [row.base for row in store.read_leases("pay").rows] == ["pay"]
    assert {row.base for row in store.read_leases().rows} == {"pay", "PAY", "pay ", "pay-1"}


@pytest.mark.gate(1)
def test_only_the_holder_claims(store: Leases) -> None:
    """[DW-15] A claim that is refused leaves the row as it was."""
    assert store.take(FIRST, None)
    owner = store.claim_leased("pay-0", "a").owner
    assert store.read_state("pay-0").owner == owner
    with pytest.raises(LeaseLost, match="held by host a"):
        store.claim_leased("pay-0", "b")
    with pytest.raises(LeaseLost, match="it is free"):
        store.claim_leased("pay-1", "a")
    assert store.read_state("pay-0").owner == owner
    assert store.read_state("pay-1") is None
    store.expire("pay-0")
    assert store.claim_leased("pay-0", "a").owner != owner
    store.release_lease("pay-0", "a")
    with pytest.raises(LeaseLost):
        store.claim_leased("pay-0", "a")


@pytest.mark.gate(1)
def test_a_claim_that_waits_for_the_row_keeps_no_lease_locked(place: Place, store: Leases) -> None:
    """[DW-15] Its holder goes on renewing; and if another takes the lease meanwhile, the claim is refused."""
    if place.kind in ("sqlite", "sqlite+aiosqlite"):
        pytest.skip("SQLite has one writer at a time")
    assert store.take(FIRST, None)
    store.claim_leased("pay-0", "a")
    lock = "SELECT owner FROM kafka_transaction_state WHERE transactional_id = 'pay-0' FOR UPDATE"
    failures: list[BaseException] = []

    def claim() -> None:
        try:
            store.claim_leased("pay-0", "a")
        except LeaseLost as exc:
            failures.append(exc)
        finally:
            store.release_thread() if place.kind == "django" else None

    with stores.closing_engine(place) as engine, engine.connect() as blocker:
        blocker.execute(text(lock))
        waiting = threading.Thread(target=claim)
        waiting.start()
        assert store.renew_leases(["pay-0"], "a", DURATION_MS) == {"pay-0"}
        assert store.take(replace(FIRST, holder="b"), store.only())
        blocker.rollback()
        waiting.join()
    assert len(failures) == 1


@pytest.mark.gate(0)
@pytest.mark.parametrize("place", KINDS[1:2], indirect=True)
def test_no_two_that_start_together_get_one_number(place: Place) -> None:
    """Eight at the same moment, each as a process of its own would."""
    barrier = threading.Barrier(8)

    def take(number: int) -> list[str]:
        with stores.opened(place) as store:
            config = {"bootstrap.servers": "localhost:1", "transactional.id": "pay"}
            pool = WriterPool(store, config, 3, lease=Lease())
            keeper = pool._leases
            assert keeper is not None
            keeper._holder = f"holder-{number}"
            taken: list[str] = []
            barrier.wait()
            while len(taken) < 3:
                leases = store.read_leases("pay")
                for row, former in choose_leases("pay", leases, 3 - len(taken), taken):
                    if keeper._take(row, former):
                        taken.append(row.transactional_id)
            return taken

    with ThreadPoolExecutor(8) as threads:
        all_taken = [each for taken in threads.map(take, range(8)) for each in taken]
    assert sorted(all_taken) == sorted(f"pay-{n}" for n in range(24))


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    place = Place("sqlite", f"sqlite:///{tmp_path / 'rows.db'}")
    with stores.opened(place) as store:
        assert isinstance(store, SqlStore)
        store.create()
        with stores.closing_engine(place) as engine, engine.begin() as connection:
            connection.execute(text("DROP TABLE kafka_transactional_id_leases"))
        for call in (
            lambda: store.read_leases("pay"),
            lambda: store.renew_leases(["pay-0"], "a", 1),
            lambda: store.claim_leased("pay-0", "a"),
        ):
            with pytest.raises(BadStore, match=r"kafka_transactional_id_leases.*create\(\)"):
                call()


def test_a_store_without_leases_refuses(tmp_path: Path) -> None:
    config = {"bootstrap.servers": "localhost:1", "transactional.id": "pay"}
    database = Rdict(str(tmp_path / "rocks"))
    try:
        with pytest.raises(NotSupported, match="leases in RocksStore"):
            WriterPool(RocksStore(database), config, 1, lease=Lease())
    finally:
        database.close()
