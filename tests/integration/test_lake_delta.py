"""A Delta table that decides: the fence of a commit, and what a driver reads after others were at the table.

The assumptions about delta-rs that the proof in docs/adr/0064 rests on are tests of their own here.
"""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tallystick.kernel.errors import InDoubt
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.settings import BadConfig
from tallystick.lake.data_files import AttemptName, DataFileWriter
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.errors import EntryLost, TableBusy, UnusableTable
from tallystick.lake.names import parse_table_url
from tallystick.lake.ports import DataFile
from tallystick.lake.sweeping import look_for_orphans, remove_orphans
from tallystick.spark.decisions.lake_row import ATTEMPTS_MAX, LakeRow, encode_files
from tallystick.spark.options.sinks import StagedMoves
from tallystick.spark.protocol.committable import Decision, JobChecksums, RowChecksum
from tallystick.spark.protocol.errors import PrefixTaken, VoteLost

deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake  # noqa: E402
from deltalake.exceptions import CommitFailedError  # noqa: E402

from tallystick.lake.delta import DeltaLakeTable  # noqa: E402

PREFIX = "p/database"
OLD = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))
NEW = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(2))
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    DeltaTable.create(tmp_path / "table", schema=SCHEMA)
    return tmp_path / "table"


def open_row(place: Path) -> LakeRow:
    """Return a driver's view of the table; each has a table object of its own, as in another process."""
    return LakeRow(DeltaLakeTable(parse_table_url(f"delta:{place}"), {}), PREFIX)


def write_files(
    place: Path, owner: ProducerIdAndEpoch, ids: Sequence[int], attempt: str = "aa"
) -> list[DataFile]:
    table = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    writer = DataFileWriter(
        table.storage,
        table.read_definition(),
        AttemptName(key=PREFIX, owner=str(owner), attempt=attempt),
    )
    writer.write(pa.record_batch({"id": pa.array(ids, pa.int64()), "name": [f"row {n}" for n in ids]}))
    return list(writer.finish())


def moves_of(files: Sequence[DataFile]) -> StagedMoves:
    return StagedMoves(attempts=(encode_files(files),), rows=(sum(file.row_count for file in files),))


def decision(batch: int, nonce: str = "n") -> Decision:
    return Decision(
        nonce=f"{nonce}{batch}",
        participants=(),
        transaction_version=2,
        decided_ms=1,
        query_id="q",
        batches=(JobChecksums(batch, (RowChecksum(1, 2),)),),
        number=batch + 1,
    )


def read_ids(place: Path) -> list[int]:
    return sorted(pa.table(DeltaTable(place).scan().read_all())["id"].to_pylist())


def is_last() -> bool:
    return True


# ------------------------------------------------------------------------ what is built on in delta-rs


def commit_directly(table: DeltaTable, application: str, version: int, retries: int) -> None:
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        commit_properties=CommitProperties(
            max_commit_retries=retries, app_transactions=[Transaction(application, version)]
        ),
    )


def test_without_retries_delta_rs_commits_the_next_version_or_nothing(place: Path) -> None:
    """[LAK-1] Even where an append could be rebased over another one: it is not."""
    behind = DeltaTable(place)
    write_deltalake(place, pa.table({"id": [1], "name": ["x"]}, schema=SCHEMA), mode="append")
    with pytest.raises(CommitFailedError):
        commit_directly(behind, "a", 1, retries=0)
    assert DeltaTable(place).version() == 1
    assert DeltaTable(place).transaction_version("a") is None


def test_with_retries_delta_rs_rebases_over_others_and_not_over_the_same_application(place: Path) -> None:
    """The second line of defence, and why it is not the first: it compares the application id alone."""
    behind, behind_too = DeltaTable(place), DeltaTable(place)
    commit_directly(DeltaTable(place), "a", 1, retries=0)
    with pytest.raises(CommitFailedError, match="Concurrent transaction failed"):
        commit_directly(behind, "a", 2, retries=5)
    commit_directly(behind_too, "b", 1, retries=5)  # rebased: its version is not the one that it was made for
    assert DeltaTable(place).version() == 2


# ---------------------------------------------------------------------------------------- the fence


def test_a_commit_is_bound_to_the_version_that_was_read(place: Path) -> None:
    """[LAK-1] Another writer's append is no conflict to delta-rs, and still the commit does not follow it."""
    table = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    state = table.read(PREFIX)
    append_others(place)
    entry = LakeEntry(key=PREFIX, owner=str(OLD), commit="c")
    assert table.commit(state.version, entry, ()) is CommitOutcome.BEATEN
    assert table.read(PREFIX).entry is None


def test_a_decision_is_one_version_with_its_files(place: Path) -> None:
    row = open_row(place)
    assert row.claim(OLD, is_last)
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1, 2])))
    assert DeltaTable(place).version() == 2
    assert read_ids(place) == [1, 2]
    assert open_row(place).read().decision == decision(0)
    actions = [
        json.loads(line) for line in (place / "_delta_log" / f"{2:020d}.json").read_text().splitlines()
    ]
    assert [next(iter(action)) for action in actions] == ["commitInfo", "add", "txn"]


def test_a_driver_that_was_replaced_cannot_decide(place: Path) -> None:
    """[LAK-1] It reads the newer claim, and says so."""
    old, new = open_row(place), open_row(place)
    old.claim(OLD, is_last)
    files = write_files(place, OLD, [1])
    new.claim(NEW, is_last)
    with pytest.raises(PrefixTaken, match="is 7/2's"):
        old.decide(decision(0), OLD, moves_of(files))
    with pytest.raises(PrefixTaken):
        old.forget(OLD)
    assert read_ids(place) == []


class Interposed:
    """A table before whose n-th commit something else happens: between the reading and the commit."""

    def __init__(self, inner: DeltaLakeTable, act: Any, *, at: int = 1) -> None:
        self._inner, self._act, self._left = inner, act, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, *args: Any) -> CommitOutcome:
        self._left -= 1
        if self._left == 0:
            self._act()
        return self._inner.commit(*args)


def interpose(row: LakeRow, act: Any, *, at: int = 1) -> None:
    row._table = Interposed(row._table, act, at=at)  # type: ignore[assignment,arg-type]


def test_a_claim_between_reading_and_deciding_wins(place: Path) -> None:
    """[LAK-1] The zombie has read its own ownership, and stalls before it commits: the version is taken."""
    old, new = open_row(place), open_row(place)
    old.claim(OLD, is_last)
    interpose(old, lambda: new.claim(NEW, is_last))
    with pytest.raises(PrefixTaken):
        old.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))
    assert read_ids(place) == []
    assert open_row(place).read().decision is None


def test_a_claim_that_was_overtaken_asks_the_cluster_again(place: Path) -> None:
    """[SPK-43] Both were told that they are the last one; the one that commits second asks again."""
    old, new = open_row(place), open_row(place)
    answers = iter([True, False])
    interpose(old, lambda: new.claim(NEW, is_last))
    assert not old.claim(OLD, lambda: next(answers))
    new.decide(decision(0), NEW, moves_of(write_files(place, NEW, [1])))
    assert read_ids(place) == [1]


def test_a_commit_of_another_writer_is_no_claim(place: Path) -> None:
    """Appends, OPTIMIZE and checkpoints between reading and deciding: the decision follows them."""
    row = open_row(place)
    row.claim(OLD, is_last)

    def others() -> None:
        for n in (10, 11):
            write_deltalake(place, pa.table({"id": [n], "name": ["other"]}, schema=SCHEMA), mode="append")
        DeltaTable(place).optimize.compact()
        DeltaTable(place).create_checkpoint()

    interpose(row, others)
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1, 2])))
    assert read_ids(place) == [1, 2, 10, 11]
    assert open_row(place).read().decision == decision(0)


def test_two_drivers_racing_decide_one_batch_once(place: Path) -> None:
    """[LAK-1] Threads that claim and decide without waiting for each other: each version has one owner."""
    decided: list[int] = []
    barrier = threading.Barrier(2)

    def drive(number: int) -> None:
        row, owner = open_row(place), ProducerIdAndEpoch(ProducerId(number), ProducerEpoch(1))
        for turn in range(8):
            barrier.wait()
            row.claim(owner, is_last)
            files = write_files(place, owner, [number * 100 + turn], attempt=f"{number}{turn}")
            try:
                row.decide(decision(turn, f"{number}-"), owner, moves_of(files))
            except PrefixTaken:
                continue
            decided.append(number * 100 + turn)

    threads = [threading.Thread(target=drive, args=(number,)) for number in (1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert decided
    assert read_ids(place) == sorted(decided)


# -------------------------------------------------------------------------------- answers that are lost


def test_a_commit_whose_answer_is_lost_is_looked_up(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[LAK-1] delta-rs fails after the commit, as in a checkpoint: the table says that it is decided."""
    row = open_row(place)
    row.claim(OLD, is_last)
    real = DeltaTable.create_write_transaction

    def fails_afterwards(self: DeltaTable, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        raise OSError("the answer is lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails_afterwards)
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))
    assert read_ids(place) == [1]


def test_a_commit_that_may_arrive_later_is_in_doubt_and_a_claim_settles_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[LAK-1] Not taken for either outcome; the next version is taken by the claim, so it never arrives."""
    row = open_row(place)
    row.claim(OLD, is_last)

    def fails(*args: Any, **options: Any) -> None:
        raise OSError("no route to the store")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", fails)
        with pytest.raises(InDoubt, match="Restart the query"):
            row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))
    version = DeltaTable(place).version()
    assert open_row(place).claim(NEW, is_last)
    late = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    late.read(PREFIX)
    assert (
        late.commit(version, LakeEntry(key=PREFIX, owner=str(OLD), commit="late"), ()) is CommitOutcome.BEATEN
    )
    assert open_row(place).read().decision is None


def test_a_library_that_fails_takes_no_claim(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails)
    with pytest.raises(UnusableTable, match=r"takes no commit.*Nothing was begun"):
        open_row(place).claim(OLD, is_last)


def test_a_decision_that_was_made_before_a_newer_claim_is_not_called_undecided(place: Path) -> None:
    """[LAK-1] Its answer is lost, then another driver claims: that one completes it."""
    row, new = open_row(place), open_row(place)
    row.claim(OLD, is_last)

    class Losing(Interposed):
        def commit(self, *args: Any) -> CommitOutcome:
            self._inner.commit(*args)
            new.claim(NEW, is_last)
            return CommitOutcome.UNKNOWN

    row._table = Losing(row._table, None)  # type: ignore[assignment,arg-type]
    with pytest.raises(InDoubt, match="another driver has claimed the prefix since"):
        row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))
    assert new.read().decision == decision(0)


def test_a_table_that_others_keep_busy_decides_nothing(place: Path) -> None:
    row = open_row(place)
    row.claim(OLD, is_last)

    class Busy(Interposed):
        def commit(self, *_: Any) -> CommitOutcome:
            return CommitOutcome.BEATEN

    row._table = Busy(row._table, None)  # type: ignore[assignment,arg-type]
    with pytest.raises(TableBusy, match=f"{ATTEMPTS_MAX} times in a row. Nothing was decided"):
        row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))


def test_a_decision_that_is_late_is_not_made(place: Path) -> None:
    row = open_row(place)
    row.claim(OLD, is_last)
    with pytest.raises(VoteLost, match="took so long"):
        row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])), lambda: False)
    assert read_ids(place) == []


# --------------------------------------------------------------------------------- what the next driver reads


def vacuum(place: Path) -> None:
    DeltaTable(place).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def append_others(place: Path) -> None:
    for n in range(3):
        write_deltalake(place, pa.table({"id": [100 + n], "name": ["other"]}, schema=SCHEMA), mode="append")


@pytest.mark.parametrize(
    "acts",
    [
        [append_others],
        [lambda place: DeltaTable(place).create_checkpoint()],
        [append_others, lambda place: DeltaTable(place).optimize.compact()],
        [append_others, lambda place: DeltaTable(place).optimize.compact(), vacuum],
        [append_others, lambda place: DeltaTable(place).create_checkpoint(), append_others],
    ],
    ids=["appends", "checkpoint", "optimize", "vacuum", "checkpoint between appends"],
)
def test_the_decision_is_read_whatever_others_did_since(place: Path, acts: Sequence[Any]) -> None:
    """[LAK-2]"""
    row = open_row(place)
    row.claim(OLD, is_last)
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1, 2])))
    for act in acts:
        act(place)
    assert open_row(place).read().decision == decision(0)
    again = open_row(place)
    assert again.claim(NEW, is_last)
    assert again.read().decision == decision(0)
    assert [n for n in read_ids(place) if n < 100] == [1, 2]


def test_a_log_that_was_cleaned_up_is_no_missing_decision(place: Path) -> None:
    """[LAK-2] A checkpoint, and the older entries are gone: that something was decided is still known."""
    row = open_row(place)
    row.claim(OLD, is_last)
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))
    append_others(place)
    DeltaTable(place).create_checkpoint()
    for version in range(4):
        (place / "_delta_log" / f"{version:020d}.json").unlink()
    for act in (open_row(place).read, lambda: open_row(place).claim(NEW, is_last)):
        with pytest.raises(EntryLost, match="version 2 has what was decided last"):
            act()
    table = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    given_up = LakeRow(table, PREFIX, accepts_loss=True)  # as `resolve --retire` does
    assert given_up.claim(NEW, is_last)
    assert open_row(place).read().decision is None


def test_another_table_at_the_same_place_has_another_location(place: Path, tmp_path: Path) -> None:
    """[SPK-29] What the checkpoint notes is the table's own id."""
    DeltaTable.create(tmp_path / "other", schema=SCHEMA)
    locations = {open_row(place).find_location(), open_row(tmp_path / "other").find_location()}
    assert len(locations) == 2
    assert all(str(each).startswith("delta table ") for each in locations)


def test_a_prefix_that_was_given_up_has_no_decision(place: Path) -> None:
    row = open_row(place)
    row.claim(OLD, is_last)
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))
    row.forget(OLD)
    assert open_row(place).read().decision is None


# ------------------------------------------------------------------------------------- what is voted for


def test_files_that_are_not_where_the_driver_looks_are_not_decided_on(place: Path) -> None:
    """[LAK-4] Tasks on another host wrote into a folder of their own."""
    row = open_row(place)
    row.claim(OLD, is_last)
    files = write_files(place, OLD, [1])
    (place / files[0].path).unlink()
    with pytest.raises(VoteLost, match="driver and tasks do not share that storage"):
        row.decide(decision(0), OLD, moves_of(files))


def test_files_with_another_number_of_rows_are_not_decided_on(place: Path) -> None:
    """[LAK-4]"""
    row = open_row(place)
    row.claim(OLD, is_last)
    attempt = encode_files(write_files(place, OLD, [1]))
    with pytest.raises(VoteLost, match="2 rows were voted for, and the data files have 1"):
        row.decide(decision(0), OLD, StagedMoves(attempts=(attempt,), rows=(2,)))


def test_a_definition_that_changes_during_a_batch_stops_it(place: Path) -> None:
    row = open_row(place)
    row.claim(OLD, is_last)
    row.expect_batch(DeltaLakeTable(parse_table_url(f"delta:{place}"), {}).read_definition())
    files = write_files(place, OLD, [1])
    DeltaTable(place).alter.add_columns([deltalake.Field("more", "string")])
    with pytest.raises(UnusableTable, match="was changed while the batch was written"):
        row.decide(decision(0), OLD, moves_of(files))
    assert read_ids(place) == []


# --------------------------------------------------------------------------------------- tables refused


@pytest.fixture
def constrained(place: Path) -> Path:
    DeltaTable(place).alter.add_constraint({"positive": "id > 0"})
    return place


def test_a_table_with_constraints_is_refused(constrained: Path) -> None:
    with pytest.raises(UnusableTable, match="constraint positive"):
        open_row(constrained).create_table()


def test_a_table_that_forgets_application_transactions_is_refused(place: Path) -> None:
    DeltaTable(place).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 days"})
    with pytest.raises(UnusableTable, match="forget what was decided"):
        open_row(place).create_table()


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableTable, match="does not exist"):
        open_row(tmp_path / "nothing").create_table()


def test_storage_that_does_not_fence_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[LAK-1] The fence is "create if absent"."""
    url = parse_table_url(f"delta:{place}")
    with pytest.raises(BadConfig, match="two drivers may both decide"):
        DeltaLakeTable(url, {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"})
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(BadConfig):
        DeltaLakeTable(url, {})


# ---------------------------------------------------------------------------------------------- orphans


def test_files_that_the_log_still_names_are_no_orphans(place: Path) -> None:
    """[LAK-3] Compacted, so that no current version has them; an older version is read with them."""
    row = open_row(place)
    row.claim(OLD, is_last)
    files = write_files(place, OLD, [1, 2])
    row.decide(decision(0), OLD, moves_of(files))
    (orphan,) = write_files(place, OLD, [9], attempt="dead")
    append_others(place)
    DeltaTable(place).optimize.compact()
    table = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    assert set(look_for_orphans(table).live) == {orphan.path}
    open_row(place).claim(NEW, is_last)
    report = look_for_orphans(table)
    assert set(report.orphans) == {orphan.path}
    remove_orphans(table, report)
    before = DeltaTable(place, version=2)
    assert sorted(pa.table(before.scan().read_all())["id"].to_pylist()) == [1, 2]


def test_where_no_table_is_nothing_is_looked_for(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UnusableTable, match="does not exist"):
            look_for_orphans(DeltaLakeTable(parse_table_url(f"delta:{folder}"), {}))
