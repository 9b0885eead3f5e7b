"""A lake table that decides, of every format: the fence of a commit, and what a driver reads after others.

What the libraries are relied on for, and what only one format has, is in test_lake_delta.py and
test_lake_iceberg.py.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.support.effort import LONG
from tests.support.lake_tables import PLACES, PREFIX, IcebergPlace, Place, read_ids, write_files

from tallystick.kernel.errors import InDoubt
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.errors import EntryLost, SchemaDiffers, TableBusy, UnusableTable
from tallystick.lake.names import StorageOptions, parse_table_url
from tallystick.lake.opening import LakeLocation
from tallystick.lake.ports import DataFile, LakeTable
from tallystick.lake.sweeping import look_for_orphans, remove_orphans
from tallystick.spark.decisions.lake_row import ATTEMPTS_MAX, LakeRow, encode_files
from tallystick.spark.options.sinks import StagedMoves, to_table
from tallystick.spark.protocol.committable import Decision, JobChecksums, RowChecksum
from tallystick.spark.protocol.errors import PrefixTaken, VoteLost
from tallystick.spark.sink.driver.lake import prepare_target
from tallystick.spark.sink.task.combined_attempt import LakeTarget

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

OLD = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))
NEW = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(2))


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return PLACES[request.param](tmp_path)


def open_row(place: Place) -> LakeRow:
    """Return a driver's view of the table; each has a table object of its own, as in another process."""
    return LakeRow(place.open(), PREFIX)


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


def is_last() -> bool:
    return True


class Interposed:
    """A table before whose n-th commit something else happens: between the reading and the commit."""

    def __init__(self, inner: LakeTable, act: Any, *, at: int = 1) -> None:
        self._inner, self._act, self._left = inner, act, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, *args: Any) -> CommitOutcome:
        self._left -= 1
        if self._left == 0:
            self._act()
        return self._inner.commit(*args)


def interpose(row: LakeRow, act: Any, *, at: int = 1) -> None:
    row._table = Interposed(row._table, act, at=at)  # type: ignore[assignment]


# ---------------------------------------------------------------------------------------- the fence


@pytest.mark.gate(1)
def test_a_commit_is_bound_to_the_version_that_was_read(place: Place) -> None:
    """[LAK-1] Another writer's append is no conflict to either library; still nothing follows it unread."""
    row = open_row(place)
    row.claim(OLD, is_last)
    table = place.open()
    state = table.read(PREFIX)
    place.append([100])
    entry = LakeEntry(key=PREFIX, owner=str(OLD), commit="c")
    assert table.commit(state.version, entry, ()) is CommitOutcome.BEATEN
    current = place.open().read(PREFIX).entry
    assert current is not None
    assert current.commit != "c"


@pytest.mark.gate(1)
def test_each_claim_and_each_decision_is_one_version(place: Place) -> None:
    row = open_row(place)
    row.claim(OLD, is_last)
    versions = [place.open().read(PREFIX).version]
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1, 2])))
    versions.append(place.open().read(PREFIX).version)
    row.claim(NEW, is_last)
    versions.append(place.open().read(PREFIX).version)
    assert versions == [versions[0], versions[0] + 1, versions[0] + 2]
    assert read_ids(place) == [1, 2]
    assert open_row(place).read().decision == decision(0)


@pytest.mark.gate(1)
def test_a_driver_that_was_replaced_cannot_decide(place: Place) -> None:
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


@pytest.mark.gate(1)
def test_a_claim_between_reading_and_deciding_wins(place: Place) -> None:
    """[LAK-1] The zombie has read its own ownership, and stalls before it commits: the version is taken."""
    old, new = open_row(place), open_row(place)
    old.claim(OLD, is_last)
    interpose(old, lambda: new.claim(NEW, is_last))
    with pytest.raises(PrefixTaken):
        old.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))
    assert read_ids(place) == []
    assert open_row(place).read().decision is None


@pytest.mark.gate(1)
def test_a_claim_that_was_overtaken_asks_the_cluster_again(place: Place) -> None:
    """[SPK-43] Both were told that they are the last one; the one that commits second asks again."""
    place.append([100])  # a first snapshot, so that the first commit is the claim
    old, new = open_row(place), open_row(place)
    answers = iter([True, False])
    interpose(old, lambda: new.claim(NEW, is_last))
    assert not old.claim(OLD, lambda: next(answers))
    new.decide(decision(0), NEW, moves_of(write_files(place, NEW, [1])))
    assert read_ids(place) == [1, 100]


@pytest.mark.gate(1)
def test_a_commit_of_another_writer_is_no_claim(place: Place) -> None:
    """Appends and compaction between reading and deciding: the decision follows them."""
    row = open_row(place)
    row.claim(OLD, is_last)

    def others() -> None:
        for n in (10, 11):
            place.append([n])
        place.compact()

    interpose(row, others)
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1, 2])))
    assert read_ids(place) == [1, 2, 10, 11]
    assert open_row(place).read().decision == decision(0)


@pytest.mark.gate(0)
def test_two_drivers_racing_decide_one_batch_once(place: Place) -> None:
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


@pytest.mark.gate(1)
def test_a_commit_whose_answer_is_lost_is_looked_up(place: Place) -> None:
    """[LAK-1] The library fails after the commit: the table says that it is decided."""
    row = open_row(place)
    row.claim(OLD, is_last)
    files = write_files(place, OLD, [1])
    with place.failing(commits=True):
        row.decide(decision(0), OLD, moves_of(files))
    assert read_ids(place) == [1]
    assert open_row(place).read().decision == decision(0)


@pytest.mark.gate(1)
def test_a_claim_whose_answer_is_lost_is_looked_up(place: Place) -> None:
    """[LAK-1]"""
    place.append([100])
    with place.failing(commits=True):
        assert open_row(place).claim(OLD, is_last)
    entry = place.open().read(PREFIX).entry
    assert entry is not None
    assert entry.owner == str(OLD)


@pytest.mark.gate(1)
def test_a_commit_that_may_arrive_later_is_in_doubt_and_a_claim_settles_it(place: Place) -> None:
    """[LAK-1] Not taken for either outcome; the next version is taken by the claim, so it never arrives."""
    row = open_row(place)
    row.claim(OLD, is_last)
    files = write_files(place, OLD, [1])
    late = place.open()
    version = late.read(PREFIX).version
    with place.failing(commits=False), pytest.raises(InDoubt, match="Restart the query"):
        row.decide(decision(0), OLD, moves_of(files))
    assert open_row(place).claim(NEW, is_last)
    entry = LakeEntry(key=PREFIX, owner=str(OLD), commit="late")
    assert late.commit(version, entry, files) is CommitOutcome.BEATEN
    assert open_row(place).read().decision is None
    assert read_ids(place) == []


@pytest.mark.gate(1)
def test_a_library_that_fails_takes_no_claim(place: Place) -> None:
    place.append([100])
    with (
        place.failing(commits=False),
        pytest.raises(UnusableTable, match=r"takes no commit.*Nothing was begun"),
    ):
        open_row(place).claim(OLD, is_last)


@pytest.mark.gate(1)
def test_a_decision_that_was_made_before_a_newer_claim_is_not_called_undecided(place: Place) -> None:
    """[LAK-1] Its answer is lost, then another driver claims: that one completes it."""
    row, new = open_row(place), open_row(place)
    row.claim(OLD, is_last)

    class Losing(Interposed):
        def commit(self, *args: Any) -> CommitOutcome:
            self._inner.commit(*args)
            new.claim(NEW, is_last)
            return CommitOutcome.UNKNOWN

    row._table = Losing(row._table, None)  # type: ignore[assignment]
    with pytest.raises(InDoubt, match="another driver has claimed the prefix since"):
        row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))
    assert new.read().decision == decision(0)


@pytest.mark.gate(1)
def test_a_table_that_others_keep_busy_decides_nothing(place: Place) -> None:
    row = open_row(place)
    row.claim(OLD, is_last)

    class Busy(Interposed):
        def commit(self, *_: Any) -> CommitOutcome:
            return CommitOutcome.BEATEN

    row._table = Busy(row._table, None)  # type: ignore[assignment]
    with pytest.raises(TableBusy, match=f"{ATTEMPTS_MAX} times in a row. Nothing was decided"):
        row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))


@pytest.mark.gate(1)
@pytest.mark.parametrize("unknown", [ATTEMPTS_MAX, ATTEMPTS_MAX - 1], ids=["last", "last but one"])
def test_a_busy_table_that_does_not_answer_at_last_is_in_doubt(place: Place, unknown: int) -> None:
    """[LAK-1] The version of the attempt that was not answered is not there yet: it may arrive."""
    row = open_row(place)
    row.claim(OLD, is_last)
    outcomes = iter(
        CommitOutcome.UNKNOWN if n == unknown else CommitOutcome.BEATEN for n in range(1, ATTEMPTS_MAX + 1)
    )

    class Silent(Interposed):
        def commit(self, *_: Any) -> CommitOutcome:
            return next(outcomes)

    row._table = Silent(row._table, None)  # type: ignore[assignment]
    with pytest.raises(InDoubt, match="Restart the query"):
        row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))


@pytest.mark.gate(1)
def test_an_attempt_whose_version_others_have_taken_is_settled(place: Place) -> None:
    """[LAK-1] Late, and nothing is decided: what was not answered can no longer arrive."""
    row = open_row(place)
    row.claim(OLD, is_last)
    files = write_files(place, OLD, [1])

    class Silent(Interposed):
        def commit(self, *_: Any) -> CommitOutcome:
            place.append([100])
            return CommitOutcome.UNKNOWN

    row._table = Silent(row._table, None)  # type: ignore[assignment]
    answers = iter([True, False])
    with pytest.raises(VoteLost, match="took so long"):
        row.decide(decision(0), OLD, moves_of(files), lambda: next(answers))
    assert read_ids(place) == [100]


@pytest.mark.gate(1)
def test_a_decision_that_is_late_is_not_made(place: Place) -> None:
    row = open_row(place)
    row.claim(OLD, is_last)
    with pytest.raises(VoteLost, match="took so long"):
        row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])), lambda: False)
    assert read_ids(place) == []


# ----------------------------------------------------------------------------------------------- upserts


@pytest.mark.gate(1)
def test_an_upsert_of_some_columns_takes_nothing_from_the_others(place: Place) -> None:
    """A row that is replaced keeps what the batch has no column for; where it would not, nothing begins."""
    place.append([1, 2])
    place.add_column()
    files = place.open_writer(OLD, "aa")
    files.write(pa.record_batch({"id": pa.array([1, 3], pa.int64()), "more": ["x", "y"]}))
    fields = [StructField("id", LongType()), StructField("more", StringType())]
    if place.format == "iceberg":
        with pytest.raises(SchemaDiffers, match=r"no column name, which .* would lose.*Nothing was written"):
            prepare_upsert(place, StructType(fields))
        files.discard()
    else:
        target = prepare_upsert(place, StructType(fields))
        row = open_row(place)
        row.claim(OLD, is_last)
        row.expect_batch(target.definition, target.keys)
        row.decide(decision(0), OLD, moves_of(files.finish()))
        rows = sorted(place.read().to_pylist(), key=lambda each: each["id"])
        assert [(each["name"], each["more"]) for each in rows] == [
            ("other 1", "x"),
            ("other 2", None),
            (None, "y"),
        ]
    fields.insert(1, StructField("name", StringType()))
    assert prepare_upsert(place, StructType(fields)).keys == ("id",)


def prepare_upsert(place: Place, rows: StructType) -> LakeTarget:
    options = place.properties if isinstance(place, IcebergPlace) else place.options
    location = LakeLocation(url=parse_table_url(place.url), storage_options=StorageOptions.build(options))
    return prepare_target(location, to_table(place.url, write="upsert", keys=["id"]), rows)


# --------------------------------------------------------------------------------- what the next driver reads


def append_others(place: Place) -> None:
    for n in range(3):
        place.append([100 + n])


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    "acts",
    [
        *([["append"], ["tidy"], ["append", "compact"], ["append", "compact", "tidy"]] if LONG else []),
        ["append", "tidy", "append", "compact", "append", "tidy"],
    ],
    ids=" ".join,
)
def test_the_decision_is_read_whatever_others_did_since(place: Place, acts: Sequence[str]) -> None:
    """[LAK-2] Appends, compaction, and removal of all files and snapshots that are not needed any more."""
    row = open_row(place)
    row.claim(OLD, is_last)
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1, 2])))
    act = {"append": append_others, "compact": type(place).compact, "tidy": type(place).tidy}
    for name in acts:
        act[name](place)  # type: ignore[arg-type]
    assert open_row(place).read().decision == decision(0)
    again = open_row(place)
    assert again.claim(NEW, is_last)
    assert again.read().decision == decision(0)
    assert [n for n in read_ids(place) if n < 100] == [1, 2]


@pytest.mark.gate(1)
def test_an_entry_that_is_lost_is_no_missing_decision(place: Place) -> None:
    """[LAK-2] That something was decided is still known."""
    row = open_row(place)
    row.claim(OLD, is_last)
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))
    place.lose_entry()
    for act in (open_row(place).read, lambda: open_row(place).claim(NEW, is_last)):
        with pytest.raises(EntryLost, match=place.lost_text):
            act()
    given_up = LakeRow(place.open(), PREFIX, accepts_loss=True)  # as `resolve --retire` does
    assert given_up.claim(NEW, is_last)
    assert open_row(place).read().decision is None


def test_another_table_at_the_same_place_has_another_location(place: Place, tmp_path: Path) -> None:
    """[SPK-29] What the checkpoint notes is the table's own id."""
    (tmp_path / "elsewhere").mkdir()
    other = type(place)(tmp_path / "elsewhere")
    locations = {open_row(place).find_location(), open_row(other).find_location()}
    assert len(locations) == 2
    assert all(str(each).startswith(f"{place.format} table ") for each in locations)


@pytest.mark.gate(1)
def test_a_prefix_that_was_given_up_has_no_decision(place: Place) -> None:
    row = open_row(place)
    row.claim(OLD, is_last)
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))
    row.forget(OLD)
    assert open_row(place).read().decision is None


@pytest.mark.gate(1)
def test_two_prefixes_share_a_table(place: Place) -> None:
    """[LAK-1] Each has an entry, an owner and a decision of its own."""
    other = LakeRow(place.open(), "q/database")
    row = open_row(place)
    row.claim(OLD, is_last)
    other.claim(NEW, is_last)
    row.decide(decision(0), OLD, moves_of(write_files(place, OLD, [1])))
    assert other.read().decision is None
    other.decide(decision(5), NEW, StagedMoves(attempts=(), rows=()))
    assert row.read().decision == decision(0)
    assert other.read().decision == decision(5)


# ------------------------------------------------------------------------------------- what is voted for


@pytest.mark.gate(2)
def test_files_that_are_not_where_the_driver_looks_are_not_decided_on(place: Place) -> None:
    """[LAK-4] Tasks on another host wrote into a folder of their own."""
    row = open_row(place)
    row.claim(OLD, is_last)
    files = write_files(place, OLD, [1])
    place.remove_file(files[0].path)
    with pytest.raises(VoteLost, match="driver and tasks do not share that storage"):
        row.decide(decision(0), OLD, moves_of(files))


@pytest.mark.gate(1)
def test_files_with_another_number_of_rows_are_not_decided_on(place: Place) -> None:
    """[LAK-4]"""
    row = open_row(place)
    row.claim(OLD, is_last)
    attempt = encode_files(write_files(place, OLD, [1]))
    with pytest.raises(VoteLost, match="2 rows were voted for, and the data files have 1"):
        row.decide(decision(0), OLD, StagedMoves(attempts=(attempt,), rows=(2,)))


@pytest.mark.gate(1)
def test_a_definition_that_changes_during_a_batch_stops_it(place: Place) -> None:
    row = open_row(place)
    row.claim(OLD, is_last)
    row.expect_batch(place.open().read_definition())
    files = write_files(place, OLD, [1])
    place.add_column()
    with pytest.raises(UnusableTable, match="was changed while the batch was written"):
        row.decide(decision(0), OLD, moves_of(files))
    assert read_ids(place) == []


def test_a_table_that_is_not_there_is_refused(place: Place) -> None:
    with pytest.raises(UnusableTable, match="does not exist"):
        LakeRow(place.open(place.missing_url), PREFIX).create_table()


# ---------------------------------------------------------------------------------------------- orphans


@pytest.mark.gate(1)
def test_files_that_an_older_version_names_are_no_orphans(place: Place) -> None:
    """[LAK-3] Compacted, so that the current version has them no more; an older one is read with them."""
    row = open_row(place)
    row.claim(OLD, is_last)
    files = write_files(place, OLD, [1, 2])
    row.decide(decision(0), OLD, moves_of(files))
    (orphan,) = write_files(place, OLD, [9], attempt="dead")
    place.append([100])
    place.compact()
    table = place.open()
    assert set(look_for_orphans(table).live) == {orphan.path}
    open_row(place).claim(NEW, is_last)
    report = look_for_orphans(table)
    assert set(report.orphans) == {orphan.path}
    remove_orphans(table, report)
    assert not place.has_file(orphan.path)
    assert place.has_file(files[0].path)


def test_where_no_table_is_nothing_is_looked_for(place: Place) -> None:
    with pytest.raises(UnusableTable, match="does not exist"):
        look_for_orphans(place.open(place.missing_url))
