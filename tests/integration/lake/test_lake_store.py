"""A store in a Delta table: fences, lost answers, what is left behind, and what other writers do meanwhile.

The contract that every store keeps is in test_store_contract.py.
"""

import asyncio
import errno
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tallystick import PreparedTxnState
from tallystick.cli.main import main
from tallystick.dualwrite import (
    AsyncDeltaStore,
    BadStore,
    CommitUnknown,
    CorruptRow,
    DeltaStore,
    ManagedByWriter,
    NotCommitted,
    WriterFenced,
)
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace
from tallystick.lake import delta
from tallystick.lake.data_files import DataFileWriter
from tallystick.lake.dual_writes.model import IDLE_MS
from tallystick.lake.dual_writes.store import ATTEMPTS_MAX, UNKNOWN_MAX, LakeTransaction
from tallystick.lake.entries import CommitOutcome
from tallystick.lake.errors import SchemaDiffers, TableBusy
from tallystick.lake.names import format_writer_key, parse_table_url
from tallystick.lake.storage import LocalStorage
from tallystick.lake.sweeping import look_for_orphans, remove_orphans
from tallystick.testing import FakeClock

ID = "payments-1"
SCHEMA = pa.schema([("n", pa.int64()), ("what", pa.string())])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    DeltaTable.create(tmp_path / "table", schema=SCHEMA)
    return tmp_path / "table"


def open_store(place: Path, **options: Any) -> DeltaStore:
    """Return a store with a table object of its own, as another process has one."""
    store = DeltaStore(place, **options)
    own = delta.DeltaLakeTable(parse_table_url(store.url), {})
    store._open = lambda: own
    return store


def read_numbers(place: Path) -> list[int]:
    return sorted(pa.table(DeltaTable(place).scan().read_all())["n"].to_pylist())


def find_files(place: Path) -> set[str]:
    return {path.name for path in place.glob("tallystick-*.parquet")}


def name_state(row: StoredState, epoch: int) -> StoredState:
    return replace(row, state=PreparedTxnState(f"7:{epoch}"))


def append_others(place: Path, n: int = 99) -> None:
    write_deltalake(place, pa.table({"n": [n], "what": ["theirs"]}, schema=SCHEMA), mode="append")


def begin_recorded(store: DeltaStore, row: StoredState, epoch: int, n: int) -> LakeTransaction:
    txn = store.begin()
    txn.handle.append([{"n": n}])
    txn.record(name_state(row, epoch), row)
    return txn


def fail_first(monkeypatch: pytest.MonkeyPatch, count: int, *, after: bool) -> None:
    """Let the library lose its answers: its first commits fail before or after they were made."""
    append, failed = delta._append, 0

    def lose(*args: Any) -> None:
        nonlocal failed
        if failed < count:
            failed += 1
            if after:
                append(*args)
            raise OSError(errno.EIO, "no answer")
        append(*args)

    monkeypatch.setattr(delta, "_append", lose)


# ------------------------------------------------------------------------------------------- one commit


def test_several_appends_of_a_block_are_one_version(place: Path) -> None:
    store = open_store(place)
    row = store.claim(ID)
    txn = store.begin()
    txn.handle.append([{"n": 1}, {"n": 2, "what": "tea"}])
    txn.handle.append(pa.table({"n": pa.array([3], pa.int32())}))
    txn.record(name_state(row, 1), row)
    version = DeltaTable(place).version()
    assert read_numbers(place) == []
    txn.commit()
    assert DeltaTable(place).version() == version + 1
    assert read_numbers(place) == [1, 2, 3]
    assert open_store(place).read_state(ID) == name_state(row, 1)


def test_data_files_are_on_the_disk_before_the_record_returns(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[DW-22] What the commit names is durable before it, so its own durability is that of the rows."""
    order: list[str] = []
    finish, sync = LocalStorage.finish, LocalStorage.sync

    def finish_noted(self: LocalStorage, path: str, sink: Any) -> int:
        size = finish(self, path, sink)
        order.append(f"finished {path}")
        return size

    def sync_noted(self: LocalStorage, path: str) -> None:
        sync(self, path)
        order.append(f"synced {path}")

    monkeypatch.setattr(LocalStorage, "finish", finish_noted)
    monkeypatch.setattr(LocalStorage, "sync", sync_noted)
    store = open_store(place)
    row = store.claim(ID)
    order.clear()
    txn = begin_recorded(store, row, 1, 1)
    (file,) = find_files(place)
    assert order == [f"finished {file}"]
    txn.commit()
    assert order[1:] == [f"synced _delta_log/{2:020d}.json"]


def test_a_block_without_rows_and_records_makes_no_version(place: Path) -> None:
    store = open_store(place)
    row = store.claim(ID)
    version = DeltaTable(place).version()
    txn = store.begin()
    txn.record(row, row)
    txn.commit()
    assert DeltaTable(place).version() == version


def test_rows_without_a_record_are_not_committed(place: Path) -> None:
    store = open_store(place)
    store.claim(ID)
    txn = store.begin()
    txn.handle.append([{"n": 1}])
    with pytest.raises(NotCommitted, match="nothing was recorded"):
        txn.commit()
    txn.rollback()
    with pytest.raises(ManagedByWriter):
        txn.handle.append([{"n": 2}])
    assert read_numbers(place) == []


# -------------------------------------------------------------------------------------------- the fence


def test_a_record_that_was_prepared_before_a_claim_is_refused(place: Path) -> None:
    """[DW-1, DW-2] Its files go with it."""
    one, two = open_store(place), open_store(place)
    row = one.claim(ID)
    txn = begin_recorded(one, row, 1, 1)
    claimed = two.claim(ID)
    with pytest.raises(NotCommitted) as refused:
        txn.commit()
    assert isinstance(refused.value.cause, WriterFenced)
    txn.rollback()
    assert find_files(place) == set()
    assert two.read_state(ID) == claimed


def test_ids_of_one_table_do_not_fence_each_other(place: Path) -> None:
    one, two = open_store(place), open_store(place)
    rows = [one.claim("a"), two.claim("b")]
    txns = [
        begin_recorded(store, row, 1, n) for n, (store, row) in enumerate(zip((one, two), rows, strict=True))
    ]
    for txn in txns:  # the second one finds its version taken, and takes the next
        txn.commit()
    assert read_numbers(place) == [0, 1]
    assert list(one.transactional_ids()) == ["a", "b"]


@pytest.mark.parametrize("late_commit_is_first", [False, True])
def test_a_commit_that_arrives_after_its_writer_gave_up_meets_the_claim(
    place: Path, monkeypatch: pytest.MonkeyPatch, late_commit_is_first: bool
) -> None:
    """[DW-1] A request that is still under way is seen by the next claim, or can never be made."""
    one, two = open_store(place), open_store(place)
    row = one.claim(ID)
    txn = begin_recorded(one, row, 1, 1)
    append = delta._append
    requests: list[Callable[[], None]] = []

    def delay(*args: Any) -> None:
        requests.append(lambda: append(*args))
        raise OSError(errno.ETIMEDOUT, "no answer")

    monkeypatch.setattr(delta, "_append", delay)
    with pytest.raises(CommitUnknown):
        txn.commit()
    assert len(requests) == UNKNOWN_MAX
    monkeypatch.setattr(delta, "_append", append)
    if late_commit_is_first:
        requests[0]()
    claimed = two.claim(ID)
    for request in requests:
        with pytest.raises(Exception, match=r"version|transaction"):
            request()
    assert claimed.state == (name_state(row, 1).state if late_commit_is_first else row.state)
    assert read_numbers(place) == ([1] if late_commit_is_first else [])


# ---------------------------------------------------------------------------------------- lost answers


@pytest.mark.parametrize("after", [False, True])
def test_a_lost_answer_is_looked_up_by_name(
    place: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """[DW-3] The commit is in the table once, whether its first request was lost on the way there or back."""
    store = open_store(place)
    row = store.claim(ID)
    txn = begin_recorded(store, row, 1, 1)
    fail_first(monkeypatch, 1, after=after)
    txn.commit()
    assert read_numbers(place) == [1]
    assert DeltaTable(place).version() == 2


@pytest.mark.parametrize("after", [False, True])
def test_a_lost_answer_to_a_claim_is_looked_up_too(
    place: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    store = open_store(place)
    fail_first(monkeypatch, 1, after=after)
    assert store.claim(ID) == open_store(place).read_state(ID)


def test_an_unknown_outcome_keeps_the_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[DW-23] A rollback after it removes nothing that a version of the table may name."""
    store = open_store(place)
    row = store.claim(ID)
    txn = begin_recorded(store, row, 1, 1)
    with monkeypatch.context() as patch:
        fail_first(patch, UNKNOWN_MAX, after=False)
        with pytest.raises(CommitUnknown):
            txn.commit()
    txn.rollback()
    assert len(find_files(place)) == 1
    assert open_store(place).claim(ID).state == row.state
    report = look_for_orphans(store._open())
    assert set(report.orphans) == find_files(place)


def test_an_interrupt_in_the_commit_keeps_the_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[DW-23] An exception of a signal handler proves nothing, even if the commit was made."""
    store = open_store(place)
    row = store.claim(ID)
    txn = begin_recorded(store, row, 1, 1)

    def interrupt(self: LocalStorage, path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "sync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            txn.commit()
    txn.rollback()
    assert read_numbers(place) == [1]
    assert open_store(place).claim(ID).state == name_state(row, 1).state


def test_a_commit_that_is_not_durable_yet_is_not_acknowledged(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[DW-22] The entry is there, and not on the disk: the next claim syncs it before it believes it."""
    store = open_store(place)
    row = store.claim(ID)
    txn = begin_recorded(store, row, 1, 1)

    def fail(self: LocalStorage, path: str) -> None:
        raise OSError(errno.EIO, "cannot sync")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "sync", fail)
        with pytest.raises(CommitUnknown):
            txn.commit()
        with pytest.raises(OSError, match="cannot sync"):
            open_store(place).claim(ID)
    assert open_store(place).claim(ID).state == name_state(row, 1).state


# --------------------------------------------------------------------------------------- other writers


def test_others_may_append_optimize_and_vacuum_between_crash_and_recovery(place: Path) -> None:
    store = open_store(place)
    row = store.claim(ID)
    begin_recorded(store, row, 1, 1).commit()
    append_others(place)
    table = DeltaTable(place)
    table.optimize.compact()
    table.create_checkpoint()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    claimed = open_store(place).claim(ID)
    assert claimed.state == name_state(row, 1).state
    assert read_numbers(place) == [1, 99]


def test_a_commit_of_another_writer_is_no_conflict(place: Path) -> None:
    store = open_store(place)
    row = store.claim(ID)
    txn = begin_recorded(store, row, 1, 1)
    append_others(place)
    txn.commit()
    assert read_numbers(place) == [1, 99]


def test_a_table_that_is_never_quiet_is_told_as_busy(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decided, so that `run` may do it again."""
    store = open_store(place)
    row = store.claim(ID)
    txn = begin_recorded(store, row, 1, 1)
    calls = 0

    def beaten(*_: Any) -> CommitOutcome:
        nonlocal calls
        calls += 1
        return CommitOutcome.BEATEN

    with monkeypatch.context() as patch:
        patch.setattr(store._open(), "commit", beaten)
        with pytest.raises(NotCommitted) as refused:
            txn.commit()
        with pytest.raises(TableBusy):
            store.claim(ID)
    assert isinstance(refused.value.cause, TableBusy)
    assert calls == 2 * ATTEMPTS_MAX
    txn.rollback()
    assert find_files(place) == set()


@pytest.mark.parametrize(
    ("unanswered", "is_taken"), [(ATTEMPTS_MAX, False), (ATTEMPTS_MAX - 1, False), (1, True)]
)
def test_an_attempt_without_an_answer_is_open_until_others_have_its_version(
    place: Path, monkeypatch: pytest.MonkeyPatch, unanswered: int, is_taken: bool
) -> None:
    """[DW-3, DW-23] Attempts after it that are beaten do not tell that it will not arrive."""
    store = open_store(place)
    txn = begin_recorded(store, store.claim(ID), 1, 1)
    attempts = count(1)

    def commit(*_: Any) -> CommitOutcome:
        if next(attempts) != unanswered:
            return CommitOutcome.BEATEN
        if is_taken:
            append_others(place)
        return CommitOutcome.UNKNOWN

    with monkeypatch.context() as patch:
        patch.setattr(store._open(), "commit", commit)
        with pytest.raises(NotCommitted if is_taken else CommitUnknown):
            txn.commit()
    txn.rollback()
    assert len(find_files(place)) == (0 if is_taken else 1)


def test_a_column_that_others_add_meanwhile_is_null_in_these_rows(place: Path) -> None:
    store = open_store(place)
    row = store.claim(ID)
    txn = begin_recorded(store, row, 1, 1)
    DeltaTable(place).alter.add_columns(
        [delta.DeltaSchema.from_arrow(pa.schema([("x", pa.int64())])).fields[0]]
    )
    txn.commit()
    assert pa.table(DeltaTable(place).scan().read_all())["x"].to_pylist() == [None]


def test_a_definition_that_was_changed_meanwhile_is_a_conflict(place: Path) -> None:
    """The data files were written for another one; `run` writes them anew."""
    store = open_store(place)
    row = store.claim(ID)
    txn = begin_recorded(store, row, 1, 1)
    write_deltalake(place, pa.table({"other": [1]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(NotCommitted) as refused:
        txn.commit()
    assert isinstance(refused.value.cause, TableBusy)
    assert "definition was changed" in str(refused.value)


def test_a_table_that_was_replaced_fences(place: Path) -> None:
    """Another table at the same place knows no owner."""
    store = open_store(place)
    row = store.claim(ID)
    shutil.rmtree(place / "_delta_log")
    DeltaTable.create(place, schema=SCHEMA)
    txn = open_store(place).begin()
    txn.handle.append([{"n": 1}])
    with pytest.raises(WriterFenced, match="gone"):
        txn.record(name_state(row, 1), row)


def test_files_that_a_careless_vacuum_took_are_not_named(place: Path) -> None:
    store = open_store(place)
    row = store.claim(ID)
    txn = begin_recorded(store, row, 1, 1)
    (place / next(iter(find_files(place)))).unlink()
    with pytest.raises(NotCommitted, match="VACUUM"):
        txn.commit()
    assert store.read_state(ID) == row


# ---------------------------------------------------------------------------------- schemas, at appends


def test_rows_that_do_not_fit_are_refused_by_the_append(place: Path) -> None:
    """Before anything is written, and the rows before them stay."""
    store = open_store(place)
    row = store.claim(ID)
    txn = store.begin()
    txn.handle.append([{"n": 1}])
    for wrong in ([{"n": "one"}], [{"m": 1}], pa.table({"n": [1.5]})):
        with pytest.raises(SchemaDiffers, match="Nothing of these rows was taken"):
            txn.handle.append(wrong)
    assert find_files(place) == set()
    txn.record(name_state(row, 1), row)
    txn.commit()
    assert read_numbers(place) == [1]


def test_a_new_column_is_added_on_request(place: Path) -> None:
    store = open_store(place)
    row = store.claim(ID)
    txn = store.begin()
    txn.handle.append([{"n": 1}])
    txn.handle.append([{"n": 2, "tip": 50}], merge_schema=True)
    txn.record(name_state(row, 1), row)
    txn.commit()
    rows = pa.table(DeltaTable(place).scan().read_all()).to_pylist()
    assert sorted(rows, key=lambda each: each["n"]) == [
        {"n": 1, "what": None, "tip": None},
        {"n": 2, "what": None, "tip": 50},
    ]


def test_a_column_that_another_writer_has_added_is_known(place: Path) -> None:
    store = open_store(place)
    row = store.claim(ID)
    txn = store.begin()
    txn.handle.append([{"n": 1}])
    other = open_store(place, merge_schema=True).begin()
    other.handle.append([{"tip": 1}])
    txn.handle.append([{"tip": 5}])
    txn.record(name_state(row, 1), row)
    txn.commit()
    assert sorted(pa.table(DeltaTable(place).scan().read_all())["tip"].to_pylist(), key=str) == [5, None]


def test_partitions_and_columns_left_out(tmp_path: Path) -> None:
    place = tmp_path / "parted"
    DeltaTable.create(
        place, schema=pa.schema([("day", pa.string()), ("n", pa.int64())]), partition_by=["day"]
    )
    store = open_store(place)
    row = store.claim(ID)
    txn = store.begin()
    txn.handle.append([{"day": "mon", "n": 1}, {"day": "tue", "n": 2}, {"n": 3}])
    txn.handle.append([{"n": 4}])
    txn.record(name_state(row, 1), row)
    txn.commit()
    rows = pa.table(DeltaTable(place).scan().read_all()).to_pylist()
    assert {each["n"]: each["day"] for each in rows} == {1: "mon", 2: "tue", 3: None, 4: None}


def test_a_block_is_bounded(place: Path) -> None:
    txn = open_store(place, block_bytes_max=1000).begin()
    txn.handle.append([{"n": n} for n in range(100)])
    with pytest.raises(ValueError, match="1000 are allowed"):
        txn.handle.append([{"n": n} for n in range(100)])
    with pytest.raises(BadConfig, match="block_bytes_max"):
        DeltaStore(place, block_bytes_max=0)


# ----------------------------------------------------------------------------------- what is left behind


def test_files_of_a_live_writer_are_no_orphans(place: Path) -> None:
    """[LAK-3] Its own id has the last claim; another id's claim changes nothing."""
    store = open_store(place)
    row = store.claim(ID)
    txn = begin_recorded(store, row, 1, 1)
    open_store(place).claim("other")
    report = look_for_orphans(open_store(place)._open())
    assert (set(report.live), dict(report.orphans)) == (find_files(place), {})
    remove_orphans(store._open(), report)
    txn.commit()
    assert read_numbers(place) == [1]


def test_files_of_a_dead_writer_are_orphans_once_its_id_is_claimed(place: Path) -> None:
    store = open_store(place)
    begin_recorded(store, store.claim(ID), 1, 1)  # and no more is heard of it
    left = find_files(place)
    store.claim(ID)
    report = look_for_orphans(store._open(), [format_writer_key(ID)])
    assert set(report.orphans) == left
    remove_orphans(store._open(), report)
    assert find_files(place) == set()


def test_orphans_of_an_id_are_removed_by_the_command(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(place)
    begin_recorded(store, store.claim(ID), 1, 1)
    left = find_files(place)
    words = ["lake", "vacuum-orphans", f"delta:{place}", "--transactional-id"]
    assert main([*words, ID, "--dry-run"]) == 0
    assert "of the last claim: may still be decided" in capsys.readouterr().out
    store.claim(ID)
    assert main([*words, "another", "--yes"]) == 0
    assert find_files(place) == left
    assert main([*words, ID, "--yes"]) == 0
    assert "orphan, written within --older-than" in capsys.readouterr().out
    assert find_files(place) == left
    words[2:2] = ["--older-than", "0"]
    assert main([*words, ID, "--dry-run"]) == 3
    assert main([*words, ID, "--yes"]) == 0
    assert find_files(place) == set()


def test_a_disk_that_is_full_takes_the_block_back(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(place)
    row = store.claim(ID)
    txn = store.begin()
    txn.handle.append([{"n": 1}])

    def full(self: DataFileWriter) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(DataFileWriter, "finish", full)
        with pytest.raises(OSError, match="No space left"):
            txn.record(name_state(row, 1), row)
    txn.rollback()
    assert find_files(place) == set()
    assert store.read_state(ID) == row


# ---------------------------------------------------------------------------------------- refused tables


def test_what_is_no_table_is_told(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path / "none")
    with pytest.raises(BadStore, match="does not exist"):
        store.create()
    with pytest.raises(BadStore, match="does not exist"):
        store.claim(ID)
    with pytest.raises(BadStore, match="does not exist"):
        list(store.transactional_ids())
    with pytest.raises(BadConfig, match="object store"):
        DeltaStore("hdfs://name/table")


def test_a_table_with_rules_of_its_own_is_refused(place: Path) -> None:
    DeltaTable(place).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(BadStore, match="constraint"):
        open_store(place).create()
    with pytest.raises(BadStore, match="constraint"):
        open_store(place).claim(ID)


def test_a_log_that_was_cleaned_up_is_no_empty_row(place: Path) -> None:
    """[LAK-2] What was decided last is gone: that is told, until someone accepts it for this id."""
    store = open_store(place)
    row = store.claim(ID)
    begin_recorded(store, row, 1, 1).commit()
    append_others(place)
    table = DeltaTable(place)
    table.create_checkpoint()
    for version in range(3):
        (place / f"_delta_log/{version:020d}.json").unlink()
    with pytest.raises(CorruptRow, match="accept_lost"):
        open_store(place).claim(ID)
    with pytest.raises(CorruptRow):
        open_store(place, accept_lost={"another"}).claim(ID)
    claimed = open_store(place, accept_lost={ID}).claim(ID)
    assert claimed == StoredState(transactional_id=ID, owner=claimed.owner)
    assert open_store(place).read_state(ID) == claimed


def clean_log(place: Path, before: int) -> None:
    """Do what a checkpoint does to the entries of a log that are older than its retention."""
    DeltaTable(place).create_checkpoint()
    for version in range(before):
        (place / f"_delta_log/{version:020d}.json").unlink(missing_ok=True)


def test_the_log_does_not_lose_an_id_that_is_idle_in_a_pool(place: Path) -> None:
    """[DW-24] Another id of the same store writes for months."""
    store = open_store(place)
    store._clock = clock = FakeClock()
    busy, idle = store.claim("busy"), store.claim("idle")
    begin_recorded(store, idle, 1, 1).commit()
    for epoch in range(1, 5):
        clock.advance(IDLE_MS)
        row = name_state(busy, epoch)
        begin_recorded(store, busy, epoch, 10 + epoch).commit()
        busy = row
        clean_log(place, DeltaTable(place).version() - 1)
    assert open_store(place).read_state("idle") == name_state(idle, 1)
    assert open_store(place).read_state("busy") == busy
    begin_recorded(store, name_state(idle, 1), 2, 2).commit()  # its writer noticed nothing
    assert read_numbers(place) == [1, 2, 11, 12, 13, 14]


def test_the_awaited_store_renews_idle_entries_too(place: Path) -> None:
    """[DW-24]"""

    async def live() -> None:
        store = AsyncDeltaStore(place)
        clock = store._store._clock = FakeClock()
        await store.claim(ID)
        version = DeltaTable(place).version()
        await store.begin()
        assert DeltaTable(place).version() == version
        clock.advance(IDLE_MS)
        await store.begin()
        assert DeltaTable(place).version() == version + 1

    asyncio.run(live())


def test_an_id_that_was_taken_over_is_not_renewed(place: Path) -> None:
    """[DW-24] Its entry is its new owner's."""
    store, other = open_store(place), open_store(place)
    store._clock = clock = FakeClock()
    store.claim(ID)
    claimed = other.claim(ID)
    version = DeltaTable(place).version()
    for _ in range(3):
        clock.advance(IDLE_MS)
        store.begin()
    assert DeltaTable(place).version() == version
    assert other.read_state(ID) == claimed


def test_a_renewal_that_fails_is_no_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(place)
    store._clock = clock = FakeClock()
    row = store.claim(ID)
    clock.advance(IDLE_MS)
    with monkeypatch.context() as patch:
        fail_first(patch, 1, after=False)
        store.begin()
    assert not store.has_idle_entry()
    clock.advance(IDLE_MS)
    version = DeltaTable(place).version()
    store.begin()
    assert DeltaTable(place).version() == version + 1
    assert store.read_state(ID) == row


def test_ids_are_found_behind_checkpoints_and_a_log_that_was_cleaned_up(place: Path) -> None:
    """Also the one whose entry is lost: an operator's `resolve` has to tell of it."""
    store = open_store(place)
    assert list(store.transactional_ids()) == []
    begin_recorded(store, store.claim("a"), 1, 1).commit()
    store.claim("b")
    DeltaTable(place).create_checkpoint()
    for version in range(3):
        (place / f"_delta_log/{version:020d}.json").unlink()
    store.claim("c")
    assert list(open_store(place).transactional_ids()) == ["a", "b", "c"]


def test_an_entry_of_something_else_is_no_row(place: Path) -> None:
    store = open_store(place)
    row = store.claim(ID)
    state = store.read_table(ID)
    entry = replace(store.create_entry(row), payload="{}")
    assert store._open().commit(state.version, entry, ()) is CommitOutcome.COMMITTED
    with pytest.raises(CorruptRow):
        open_store(place).claim(ID)
