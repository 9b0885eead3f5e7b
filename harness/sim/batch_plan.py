"""What callers who share dual writes do in one run, and what goes wrong around them.

It is drawn from a random source of its own, as every kind of fault is: see `faults`.
"""

from random import Random
from typing import Final

from tallystick.dualwrite.recipes import Wait
from tallystick.kernel.value import Value


class ProcessKill(Value, kw_only=True):
    """The end of one life of the callers' process.

    after_effects  effects on the database or the network that it still sees
    in_batch       they are counted from the second unit of its first batch of several, else from its start
    """

    after_effects: int
    in_batch: bool


class CallerPlan(Value, kw_only=True):
    """Callers, their limits and their faults; probabilities are per unit, statement or commit.

    pool_size           writers of the pool, and so transactional ids
    units_per_caller    in one life of the process; a successor's callers begin with others
    lives               of the process: the last one is not killed
    kills               for each of the other lives; None: its successor begins while it goes on
    can_be_terminated   the database can end a transaction from another connection, as PostgreSQL can
    unit_raises         the work itself raises, with rows written and records queued
    conflict            a statement fails, and its savepoint takes back the unit
    deadlock            the same, and the server has rolled back the whole transaction
    connection_ends     at a statement, and its transaction with it
    bad_record          the producer refuses one of the unit's records
    late_constraint     the rows of a unit are refused at COMMIT, again and again
    commit_refused      COMMIT is refused once, through no fault of a unit
    answer_lost         of a COMMIT; or it never arrives
    slow_unit           the work takes longer than `max_batch_wait_ms`
    gives_up            the caller does not wait for its unit any more
    savepoint_units     units that run in savepoints after one has failed without
    wait                what a batch waits for at its end
    """

    callers: int
    units_per_caller: int
    pool_size: int
    max_units: int
    max_batch_wait_ms: int
    lives: int
    kills: tuple[ProcessKill | None, ...]
    can_be_terminated: bool
    statement_max_s: float
    unit_raises: float = 0.0
    conflict: float = 0.0
    deadlock: float = 0.0
    connection_ends: float = 0.0
    bad_record: float = 0.0
    late_constraint: float = 0.0
    commit_refused: float = 0.0
    answer_lost: float = 0.0
    slow_unit: float = 0.0
    gives_up: float = 0.0
    savepoint_units: int = 1
    wait: Wait = "committed"


LIVES_MAX: Final = 6


def draw_batches(random: Random) -> CallerPlan:
    """Draw the plan of one run; each fault is in about half of the runs."""

    def chance(most: float) -> float:
        return random.uniform(0.01, most) if random.random() < 0.5 else 0.0

    lives = random.randint(1, LIVES_MAX)
    return CallerPlan(
        callers=random.randint(2, 5),
        units_per_caller=random.randint(2, 4),
        pool_size=random.randint(1, 3),
        max_units=random.choice((2, 3, 64)),
        max_batch_wait_ms=random.choice((20, 200, 200)),
        lives=lives,
        kills=tuple(_draw_kill(random) for _ in range(lives - 1)),
        can_be_terminated=random.random() < 0.7,
        statement_max_s=random.choice((0.0, 0.001, 0.005)),
        unit_raises=chance(0.3),
        conflict=chance(0.05),
        deadlock=chance(0.05),
        connection_ends=chance(0.03),
        bad_record=chance(0.2),
        late_constraint=chance(0.1),
        commit_refused=chance(0.2),
        answer_lost=chance(0.4),
        slow_unit=chance(0.1),
        gives_up=chance(0.2),
        savepoint_units=random.choice((1, 8, 256)),
        wait=random.choice(("committed", "decided")),
    )


def _draw_kill(random: Random) -> ProcessKill | None:
    if random.random() < 0.15:
        return None
    in_batch = random.random() < 0.7
    # A batch has 15 to 40 places between its second unit and the answer to EndTxn.
    return ProcessKill(after_effects=random.randint(0, 30 if in_batch else 150), in_batch=in_batch)
