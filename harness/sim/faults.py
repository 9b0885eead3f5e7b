"""The faults of one run, all drawn from its seed.

Each kind of fault is on in about half of the runs: a run with every fault shows less than one with two,
because clients then hardly get anywhere (swarm testing). Each kind in `FaultKind` is drawn from a random
source of its own, so that one can be switched off without changing the others.
"""

import errno
from collections.abc import Iterable, Mapping
from enum import Enum
from random import Random
from typing import Final, Literal

from msgspec import field

from harness.memory_fs import SurvivingChanges
from tallystick.kernel.value import Value, replace

Repeats = Literal["none", "at once", "any time"]


class FaultKind(Enum):
    """A kind of fault that can be switched off by its name."""

    DELETION = "deletion"  # a topic is deleted and recreated
    DELETE_RECORDS = "delete-records"
    RETENTION = "retention"
    MARKERS = "markers"  # an administrator ends a transaction in one partition
    REUSED_NUMBERS = "reused-numbers"  # clients like librdkafka, see Kind.reuses_numbers
    EMFILE = "emfile"
    EIO = "eio"
    REBALANCES = "rebalances"  # members of a group come, go and vanish


FAULTS_OFF: Final[frozenset[FaultKind]] = frozenset()
"""Faults drawn only on request: the broker cannot survive them yet."""


class FailingCalls(Value, kw_only=True):
    """A period in which each of the disk's calls fails at random."""

    error: int
    begins_s: float
    ends_s: float
    chance: float


class PowerLoss(Value, kw_only=True):
    """The end of one life of the broker.

    after_effects  the number of the disk's effect it comes after, counted from the start of that life;
                   None: between two effects, `after_s` from its start
    keep           what the disk keeps of unsynced changes; `everything` is a killed process
    down_s         until the next life
    """

    after_effects: int | None
    after_s: float
    keep: SurvivingChanges
    keep_seed: int
    down_s: float


class FaultPlan(Value, kw_only=True):
    """The faults of a run; probabilities are per message, times in virtual seconds from the start."""

    flush_policy: Literal["ack", "os"] = "ack"
    lose_request: float = 0.0
    lose_reply: float = 0.0
    repeat_request: float = 0.0
    late_request: float = 0.0
    late_max_s: float = 0.5
    latency_max_s: float = 0.002
    sync_delay_max_s: float = 0.002
    power_losses: tuple[PowerLoss, ...] = ()
    disk_full: tuple[tuple[float, float, int], ...] = ()  # from, to, bytes that still fit
    disk_breaks_at_s: tuple[float, ...] = ()  # a sync fails: the broker stops itself
    clock_jumps: tuple[tuple[float, int], ...] = ()  # when, and by how many milliseconds in either direction
    client_dies: float = 0.0  # at each step between two requests
    client_gives_up: float = 0.0  # on a batch that got no reply
    client_lives_on: float = 0.0  # when it is replaced: two live clients with one id
    database_unknown: float = 0.0  # a database commit whose result is lost
    terminations_at_s: tuple[float, ...] = ()  # an administrator ends an id's open transaction
    upgrade_at_s: float | None = None  # transaction.version 2 is finalized
    fresh_disk: bool = False  # topics are created during the run
    settings: Mapping[str, str] = field(default_factory=dict)  # settings of the broker
    deletions_at_s: tuple[float, ...] = ()
    delete_records_at_s: tuple[float, ...] = ()
    markers_at_s: tuple[float, ...] = ()
    retention_ms: int | None = None
    failing_calls: tuple[FailingCalls, ...] = ()
    reuses_numbers: bool = False
    members_until_s: float | None = None

    @property
    def may_lose_acknowledged(self) -> bool:
        """Whether acknowledged records can be lost, because they were not synced before the disk failed."""
        loses_changes = any(loss.keep != "everything" for loss in self.power_losses)
        disk_fails = bool(self.disk_breaks_at_s or self.failing_calls)
        return self.flush_policy != "ack" and (loses_changes or disk_fails)

    @property
    def may_confuse_topics(self) -> bool:
        """Whether a start can take a recreated topic for its predecessor that lost its end."""
        return self.flush_policy != "ack" and bool(self.deletions_at_s and self.power_losses)


FAULTS_END_S: Final = 2.0
"""The seconds in which faults come; a run without faults ends sooner."""


def draw_faults(random: Random) -> FaultPlan:
    """Draw the faults of one run."""

    def on() -> bool:
        return random.random() < 0.5

    def chance(most: float) -> float:
        return random.uniform(0.01, most) if on() else 0.0

    def times(most: int) -> tuple[float, ...]:
        return tuple(
            sorted(random.uniform(0, FAULTS_END_S) for _ in range(random.randint(1, most) if on() else 0))
        )

    settings = {
        name: text for some in _HASTY_SETTINGS if random.random() < 0.15 for name, text in some.items()
    }
    late_max_s = random.choice((0.05, 0.5, 2.0))
    if "producer.id.expiration.ms" in settings:
        late_max_s = 0.05  # once its producer is forgotten, a repeated batch looks like a new one
    policy: Literal["ack", "os"] = "ack" if random.random() < 0.7 else "os"
    kill_only = policy == "os" and on()
    return FaultPlan(
        flush_policy=policy,
        lose_request=chance(0.1),
        lose_reply=chance(0.15),
        repeat_request=chance(0.15),
        late_request=chance(0.3),
        late_max_s=late_max_s,
        latency_max_s=random.choice((0.0, 0.002, 0.02)),
        sync_delay_max_s=random.choice((0.0, 0.002, 0.05)),
        power_losses=tuple(
            _draw_power_loss(random, kill_only=kill_only) for _ in range(random.randint(1, 4) if on() else 0)
        ),
        disk_full=_draw_disk_full(random) if random.random() < 0.2 else (),
        disk_breaks_at_s=times(1) if random.random() < 0.2 else (),
        clock_jumps=tuple((at, random.choice((-70_000, -500, 500, 5_000, 70_000))) for at in times(2)),
        client_dies=chance(0.1),
        client_gives_up=chance(0.9),
        client_lives_on=0.5 if on() else 0.0,
        database_unknown=chance(0.3),
        terminations_at_s=times(2) if random.random() < 0.3 else (),
        upgrade_at_s=random.uniform(0, FAULTS_END_S) if on() else None,
        fresh_disk=random.random() < 0.1,
        settings=settings,
    )


def add_faults(seed: int, plan: FaultPlan, kinds: Iterable[FaultKind]) -> FaultPlan:
    """Return the plan with faults of these kinds added, each in some of the runs."""
    chosen_kinds = set(kinds)
    for kind in FaultKind:
        random = Random(f"{kind.value} {seed}")
        if kind in chosen_kinds and random.random() < 0.25:
            plan = _add_fault(random, plan, kind)
    return plan


def _add_fault(random: Random, plan: FaultPlan, kind: FaultKind) -> FaultPlan:
    def times(most: int) -> tuple[float, ...]:
        return tuple(sorted(random.uniform(0, FAULTS_END_S) for _ in range(random.randint(1, most))))

    match kind:
        case FaultKind.DELETION:
            return replace(plan, deletions_at_s=times(2))
        case FaultKind.DELETE_RECORDS:
            return replace(plan, delete_records_at_s=times(3))
        case FaultKind.MARKERS:
            return replace(plan, markers_at_s=times(3))
        case FaultKind.REUSED_NUMBERS:
            lose_reply = max(plan.lose_reply, random.uniform(0.05, 0.3))
            gives_up = max(plan.client_gives_up, 0.5)
            return replace(plan, reuses_numbers=True, lose_reply=lose_reply, client_gives_up=gives_up)
        case FaultKind.REBALANCES:
            settings = {"group.min.session.timeout.ms": "50", "group.initial.rebalance.delay.ms": "0"}
            until_s = random.uniform(0.3, FAULTS_END_S)
            return replace(plan, members_until_s=until_s, settings={**plan.settings, **settings})
        case FaultKind.RETENTION:
            retention_ms = random.choice((50, 400, 2_000))
            settings = {
                "log.retention.check.interval.ms": "70",
                "log.roll.ms": "100",
                "log.segment.delete.delay.ms": "50",
                **plan.settings,
                "log.retention.ms": str(retention_ms),
            }
            return replace(plan, retention_ms=retention_ms, settings=settings)
        case FaultKind.EMFILE | FaultKind.EIO:
            begins = random.uniform(0, FAULTS_END_S)
            failing = FailingCalls(
                error=errno.EMFILE if kind is FaultKind.EMFILE else errno.EIO,
                begins_s=begins,
                ends_s=begins + random.uniform(0.02, 0.5),
                chance=random.choice((0.01, 0.1, 1.0)),
            )
            return replace(plan, failing_calls=(*plan.failing_calls, failing))


# Events that otherwise take days happen in the middle of a transaction.
_HASTY_SETTINGS: Final = (
    {"log.roll.ms": "100"},
    {"producer.id.expiration.ms": "150"},
    {"transactional.id.expiration.ms": "150"},
    {
        "log.roll.ms": "20",
        "log.cleaner.enable": "true",
        "log.cleaner.backoff.ms": "30",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.delete.retention.ms": "100",
        "log.segment.delete.delay.ms": "50",
    },
)


def _draw_power_loss(random: Random, *, kill_only: bool) -> PowerLoss:
    kinds: tuple[SurvivingChanges, ...] = ("nothing", "everything", "prefix", "subset", "unordered")
    return PowerLoss(
        after_effects=random.randint(0, 150) if random.random() < 0.6 else None,
        after_s=random.uniform(0, FAULTS_END_S / 2),
        keep="everything" if kill_only else random.choice(kinds),
        keep_seed=random.getrandbits(32),
        down_s=random.choice((0.0, 0.01, 0.3)),
    )


def _draw_disk_full(random: Random) -> tuple[tuple[float, float, int], ...]:
    begins = random.uniform(0, FAULTS_END_S)
    return ((begins, begins + random.uniform(0.05, 1.0), random.randint(0, 2000)),)
