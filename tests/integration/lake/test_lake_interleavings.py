"""Two drivers at one table, step by step: in which order they claim, read and commit makes no difference.

A step is what a driver does to the cluster or to the table. The steps of two drivers that each claim the
prefix and decide a batch are put in many orders, on tables of every format.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, count, islice
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Final

import pytest
from tests.support.effort import LONG
from tests.support.lake_tables import PLACES, Place, read_ids, write_files

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.lake.entries import CommitOutcome
from tallystick.lake.ports import LakeTable, TableState
from tallystick.spark.decisions.lake_row import LakeRow, encode_files
from tallystick.spark.options.sinks import StagedMoves
from tallystick.spark.protocol.committable import Decision, JobChecksums, RowChecksum
from tallystick.spark.protocol.errors import PrefixTaken

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

# Cluster, read, commit; read; read, commit: of a driver that nothing comes between.
STEPS: Final = 6
OWNERS: Final = [ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(epoch)) for epoch in (1, 2)]


class Schedule:
    """Whose step is next: a driver waits for its turn, and has it until it asks for the next one, or ends."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order, self._live, self._running = list(order), {0, 1}, -1
        self._changed = Condition()

    def await_turn(self, driver: int) -> None:
        with self._changed:
            self._stop(driver)
            self._changed.wait_for(lambda: self._running < 0 and self._choose() == driver)
            if self._order:
                self._order.pop(0)
            self._running = driver

    def end(self, driver: int) -> None:
        with self._changed:
            self._live.discard(driver)
            self._stop(driver)

    def _choose(self) -> int:
        while self._order and self._order[0] not in self._live:
            self._order.pop(0)
        return self._order[0] if self._order else min(self._live)

    def _stop(self, driver: int) -> None:
        if self._running == driver:
            self._running = -1
        self._changed.notify_all()


class Stepped:
    """A table of which each reading and each commit waits for its turn."""

    def __init__(self, inner: LakeTable, schedule: Schedule, driver: int) -> None:
        self._inner, self._schedule, self._driver = inner, schedule, driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, *args: Any, **options: Any) -> TableState:
        self._schedule.await_turn(self._driver)
        return self._inner.read(*args, **options)

    def commit(self, *args: Any) -> CommitOutcome:
        self._schedule.await_turn(self._driver)
        return self._inner.commit(*args)


class Race:
    """Two drivers with one prefix: which of them decided, and what each found decided when it had claimed."""

    def __init__(self, place: Place, number: int, order: Sequence[int]) -> None:
        self._place, self.prefix = place, f"p{number}/database"
        self._schedule = Schedule(order)
        self._last_claim = -1
        self.ids = [10 * number + driver for driver in (0, 1)]
        self.decided: set[int] = set()
        self.known: dict[int, Decision | None] = {}

    def run(self) -> None:
        threads = [Thread(target=self._drive, args=(driver,)) for driver in (0, 1)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def decision_of(self, driver: int) -> Decision:
        batch = JobChecksums(driver, (RowChecksum(1, 2),))
        nonce = f"{self.prefix} {driver}"
        return Decision(
            nonce=nonce, participants=(), transaction_version=2, decided_ms=1, query_id="q", batches=(batch,)
        )

    def _drive(self, driver: int) -> None:
        table: Any = Stepped(self._place.open(), self._schedule, driver)
        row, owner = LakeRow(table, self.prefix), OWNERS[driver]
        files = write_files(self._place, owner, [self.ids[driver]], attempt=f"{self.ids[driver]:x}")
        try:
            self._schedule.await_turn(driver)
            self._last_claim = driver
            if row.claim(owner, lambda: self._last_claim == driver):
                self.known[driver] = row.read().decision
                row.decide(
                    self.decision_of(driver), owner, StagedMoves(attempts=(encode_files(files),), rows=(1,))
                )
                self.decided.add(driver)
        except PrefixTaken:
            pass
        finally:
            self._schedule.end(driver)


# In an object store each step is a request or several; the contract is tested there in test_lake_contract.py.
KINDS = tuple(PLACES) if LONG else ("delta", "iceberg")


def list_orders() -> Iterator[tuple[int, ...]]:
    """Yield orders of the steps of both: some of them, spread over all."""
    places = combinations(range(2 * STEPS), STEPS)
    chosen = islice(places, 0, None, 7 if LONG else 92)
    return (tuple(int(step not in first) for step in range(2 * STEPS)) for first in chosen)


@pytest.mark.gate(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_driver_that_claims_last_knows_what_was_decided_before(kind: str, tmp_path: Path) -> None:
    """[LAK-1] [LAK-2] [LAK-5] [SPK-43] The other one has decided, and then the last one knows it; or not."""
    place = PLACES[kind](tmp_path)
    place.append([0])
    expected, outcomes = [0], set()
    for number, order in zip(count(1), list_orders(), strict=False):
        race = Race(place, number, order)
        race.run()
        entry = place.open().read(race.prefix).entry
        assert entry is not None
        last = [str(owner) for owner in OWNERS].index(entry.owner)
        other = 1 - last
        assert last in race.decided, order
        assert race.known[last] == (race.decision_of(other) if other in race.decided else None), order
        expected += [race.ids[driver] for driver in race.decided]
        outcomes.add((last, other in race.decided))
    assert read_ids(place) == sorted(expected)
    assert {other_decided for _, other_decided in outcomes} == {True, False}
    assert {last for last, _ in outcomes} == {0, 1}
