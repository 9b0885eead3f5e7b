"""The disk fails, or power does, at every call of what an administrator has done.

Deletion, creation and growth of a topic, deletion of records, the exchange of compacted segments: whatever
fails of them, nothing acknowledged is lost, nothing deleted comes back, and names become free in the end.
"""

import errno
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Final, get_args

import pytest
from tests.support.admin_points import (
    Change,
    Compaction,
    Creation,
    Deletion,
    DeletionAtTheEnd,
    Desk,
    Growth,
    Trimming,
)
from tests.support.effort import LONG
from tests.support.failing_calls import CHANGES, METADATA, OPENS, When

from harness.memory_fs import PowerLost, SurvivingChanges
from tallystick.kernel.value import Value

CHANGED: Final = (Deletion, DeletionAtTheEnd, Creation, Growth, Trimming, Compaction)
ERRORS: Final = (errno.ENOSPC, errno.EIO, errno.EMFILE)
KEEPS: Final[tuple[SurvivingChanges, ...]] = ("nothing", "everything", "prefix", "unordered")
SEEDS: Final = 10 if LONG else 1


@cache
def calls_of(change: type[Change]) -> tuple[tuple[str, str], ...]:
    """What it asks of the disk where nothing fails."""
    desk = change.begun().desk()
    made = change(desk)
    desk.calls.count()
    made.run()
    return tuple(desk.calls.calls)


@cache
def effects_of(change: type[Change]) -> int:
    desk = change.begun().desk()
    before = len(desk.calls.effects)
    change(desk).run()
    return len(desk.calls.effects) - before


def go_on(desk: Desk, made: Change) -> None:
    """The disk is well again: what was begun is finished, and survives a stop and a loss of power."""
    if desk.broker.failure is None:
        made.check()
        desk.wait()
        made.check()
        made.finish()
        made.check()
        desk.stop()
    else:
        desk.crash()
    desk.start()
    made.check()
    made.finish()
    made.check()
    desk.crash()
    desk.start()
    made.check()
    desk.wait()
    assert not [name for name in desk.calls.listdir("data") if name.endswith("-delete")]


class Failure(Value):
    """The call with this number fails, or it and all after it."""

    number: int
    error: int
    when: When
    lasts: bool

    def fails(self, number: int, name: str, path: str) -> bool:
        if self.error == errno.EMFILE and name not in OPENS:
            return False
        return number == self.number or (self.lasts and number > self.number)


def failures_at(number: int, name: str, error: int) -> Iterator[Failure]:
    """How a call may fail: the long form has every way, the short one every call, and each way in turn."""
    if error == errno.EMFILE and name not in OPENS:
        return
    for when, lasts in product(get_args(When), (False, True)):
        if when == "after" and (
            name not in CHANGES or (name == METADATA and error != errno.EIO) or error == errno.EMFILE
        ):
            continue  # it changes nothing; or SQLite has taken it back
        turn = lasts + 2 * (when == "after")
        short = number % 4 == turn if turn else error == errno.EIO or error == errno.EMFILE or number % 2 == 0
        if LONG or short:
            yield Failure(number, error, when, lasts)


@pytest.mark.gate(1)
@pytest.mark.parametrize("error", ERRORS, ids=[errno.errorcode[error] for error in ERRORS])
@pytest.mark.parametrize("change", CHANGED)
def test_an_error_at_any_call_loses_nothing(change: type[Change], error: int) -> None:
    """[MET-3]"""
    for number, (name, path) in enumerate(calls_of(change)):
        if not LONG and "-delete" in path and number % 5:
            continue  # one file of those that are removed last is like another
        for failure in failures_at(number, name, error):
            desk = change.begun().desk()
            made = change(desk)
            desk.calls.count()
            desk.calls.fail(failure.error, failure.fails, failure.when)
            made.run()
            assert desk.calls.failed, failure
            desk.calls.heal()
            if desk.broker.failure is None:
                made.meddle()
            try:
                go_on(desk, made)
            except BaseException as exc:
                exc.add_note(f"{failure}: {calls_of(change)[number]}")
                raise


@pytest.mark.gate(1)
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("change", CHANGED)
def test_power_lost_after_any_effect_loses_nothing(change: type[Change], keep: SurvivingChanges) -> None:
    """[MET-3]"""
    for effect in range(effects_of(change)):
        if not LONG and keep != "nothing" and effect % 3 != KEEPS.index(keep) - 1:
            continue
        for seed in range(SEEDS if keep in ("prefix", "unordered") else 1):
            desk = change.begun().desk()
            made = change(desk)
            desk.calls.crash_after = len(desk.calls.effects) + effect
            with pytest.raises(PowerLost):
                made.run()
            desk.crash(keep, 1000 * effect + seed)
            desk.start()
            go_on(desk, made)


@pytest.mark.gate(0)
def test_power_lost_again_while_a_deletion_is_finished_loses_nothing() -> None:
    """[MET-3] After any effect of the start that goes on with it."""
    for effect in range(0, effects_of(Deletion), 2 if LONG else 9):
        again = 0
        while True:
            desk = Deletion.begun().desk()
            made = Deletion(desk)
            desk.calls.crash_after = len(desk.calls.effects) + effect
            with pytest.raises(PowerLost):
                made.run()
            desk.crash("prefix", effect)
            desk.calls.crash_after = again
            try:
                desk.start()
                desk.wait()
            except PowerLost:
                desk.crash("unordered", again)
                desk.start()
                go_on(desk, made)
                again += 4 if LONG else 7
            else:
                break
