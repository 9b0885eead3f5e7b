"""Units of concurrent callers: what each was to do, did, and was told; and whether that can be true [DW-14].

The checkers are pure, and share nothing with the code under test but the history.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from tallystick.kernel.ids import TopicPartition


@dataclass(slots=True, eq=False)
class SimUnit:
    """The work of one caller, as its caller knows it.

    number          names the unit in the run
    caller          names the caller; its units have rising numbers
    key             the row that the unit counts up; its records have the count that it read
    row_count       rows that it inserts
    partitions      where its records go, one each, in their order
    was_told        True: committed, False: not committed, None: nothing, or that it is not known
    was_left        its caller did not wait for it, and may be told of a later unit before it ends
    attempts        how often the work was begun
    raised          the attempts whose work raised
    texts           each text that was sent, with its attempt and the count of the key
    """

    number: int
    caller: str
    key: str
    row_count: int
    partitions: tuple[TopicPartition, ...]
    was_told: bool | None = None
    was_left: bool = False
    attempts: int = 0
    raised_attempts: set[int] = field(default_factory=set)
    texts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"unit {self.number} of {self.caller}"


OUTCOMES: Final = {True: "committed", False: "not committed"}

CommittedRows = Mapping[int, Sequence[int]]
"""The attempt that each committed row is of, by the unit's number."""


@dataclass(frozen=True, slots=True)
class UnitEvidence:
    """What both halves hold in the end.

    visible  the texts that a read_committed reader sees, in order, by partition
    rows     the committed rows
    excused  texts that were deleted or ended on purpose, which may be missing
    """

    visible: Mapping[TopicPartition, Sequence[str]]
    rows: CommittedRows
    excused_texts: AbstractSet[str] = frozenset()

    def visible_texts(self) -> set[str]:
        return {text for texts in self.visible.values() for text in texts}


def check_units(units: Sequence[SimUnit], evidence: UnitEvidence) -> Iterator[str]:
    """Yield everything that is wrong with the units of a run."""
    yield from check_both_halves(units, evidence)
    yield from check_applied_once(units, evidence)
    yield from check_outcomes_told(units, evidence)
    yield from check_raised_attempts(units, evidence)
    yield from check_unit_order(units, evidence)


def check_both_halves(units: Iterable[SimUnit], evidence: UnitEvidence) -> Iterator[str]:
    """Yield each unit with rows and no records, or records and no rows, or not all of either."""
    visible = evidence.visible_texts()
    for unit in units:
        rows = len(evidence.rows.get(unit.number, ()))
        texts = [text for text in unit.texts if text in visible]
        missing_at_most = sum(text in evidence.excused_texts and text not in visible for text in unit.texts)
        if not rows and texts:
            yield f"{unit} is in the log, with {texts}, and not in the database"
        elif rows and not len(texts) <= len(unit.partitions) <= len(texts) + missing_at_most:
            yield f"{unit} has {rows} rows, and {len(texts)} records instead of {len(unit.partitions)}"
        if rows and rows < unit.row_count:
            yield f"{unit} has {rows} rows instead of {unit.row_count}"


def check_applied_once(units: Iterable[SimUnit], evidence: UnitEvidence) -> Iterator[str]:
    """Yield each unit of which two attempts are committed, or one twice."""
    visible = evidence.visible_texts()
    for unit in units:
        rows = evidence.rows.get(unit.number, ())
        attempts = {*rows} | {attempt for text, (attempt, _) in unit.texts.items() if text in visible}
        if len(rows) > unit.row_count or len(attempts) > 1:
            yield f"{unit} was applied twice: {len(rows)} rows, of the attempts {sorted(attempts)}"


def check_outcomes_told(units: Iterable[SimUnit], evidence: UnitEvidence) -> Iterator[str]:
    """Yield each unit that did not end as its caller was told."""
    for unit in units:
        is_committed = bool(evidence.rows.get(unit.number))
        if unit.was_told is not None and unit.was_told is not is_committed:
            yield f"{unit} is {OUTCOMES[is_committed]}, and its caller was told: {OUTCOMES[unit.was_told]}"


def check_raised_attempts(units: Iterable[SimUnit], evidence: UnitEvidence) -> Iterator[str]:
    """Yield each unit of which something stayed that was done by work that raised."""
    visible = evidence.visible_texts()
    for unit in units:
        rows = [attempt for attempt in evidence.rows.get(unit.number, ()) if attempt in unit.raised_attempts]
        texts = [
            text
            for text, (attempt, _) in unit.texts.items()
            if text in visible and attempt in unit.raised_attempts
        ]
        if rows or texts:
            attempts = sorted(unit.raised_attempts)
            yield f"{unit} raised in the attempts {attempts}, and {len(rows)} rows and {texts} stay"


def check_unit_order(units: Iterable[SimUnit], evidence: UnitEvidence) -> Iterator[str]:
    """Yield each record out of order: of its unit's others, its caller's units, or its key's counts.

    The units of a caller that did not wait for one of them are in no promised order with that one.
    """
    unit_of_text = {text: unit for unit in units for text in unit.texts}
    for partition, texts in evidence.visible.items():
        last_place: dict[str, tuple[int, int]] = {}
        last_count: dict[str, int] = {}
        for text in texts:
            unit = unit_of_text.get(text)
            if unit is None:
                continue
            place, count = (unit.number, [*unit.texts].index(text)), unit.texts[text][1]
            if not unit.was_left:
                if place < last_place.get(unit.caller, place):
                    yield f"{partition}: {text} of {unit} comes after {last_place[unit.caller]}"
                last_place[unit.caller] = place
            if count < last_count.get(unit.key, count):
                yield f"{partition}: {text} has {unit.key} {count}, after {last_count[unit.key]}"
            last_count[unit.key] = count


def count_rows(rows: Iterable[tuple[int, int]]) -> CommittedRows:
    """Group rows, each a unit's number and its attempt."""
    texts_by_key: dict[int, list[int]] = defaultdict(list)
    for number, attempt in rows:
        texts_by_key[number].append(attempt)
    return texts_by_key


class BatchCounts(Counter[str]):
    """How often what a run is for has happened in it.

    formed     COMMITs sent with two units or more
    killed     processes that ended with such a batch open
    split      such batches that were rolled back or refused as a whole
    recovered  callers that learned the true outcome of a COMMIT that was not answered
    overtaken  transactions ended in the server, because of a slow unit
    """
