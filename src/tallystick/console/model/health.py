"""Words for the health of a transaction, and the limits of its assessment. Pure."""

from enum import Enum
from typing import Final

from tallystick.kernel.value import Value


class Health(Enum):
    """Whether an operator has to act; the value is the word that pages show. Worst first."""

    BROKEN = "broken"  # the two sides differ, or neither commit nor abort would be right
    REFUSING = "refusing"  # a broker or a database takes no writes: nothing can be ended before it does
    HANGING = "hanging"  # no coordinator will ever end it
    ORPHAN = "orphan"  # in doubt, and nothing that is read here knows who decides it
    RECOVER = "recover"  # decided, or its writer is gone: recovery ends it
    UNKNOWN = "unknown"  # one of its views could not be read
    SLOW = "slow"  # something will end it, and it takes long
    UNSETTLED = "looking again"  # looked broken once: a second look decides
    OK = "ok"

    @property
    def needs_action(self) -> bool:
        return self in (
            Health.BROKEN,
            Health.REFUSING,
            Health.HANGING,
            Health.ORPHAN,
            Health.RECOVER,
        )


SEVERITY: Final = {health: rank for rank, health in enumerate(Health)}


class Limits(Value, kw_only=True):
    """Times after which a transaction is no longer taken for one in progress.

    grace_ms  between a decision and the end of its transactions
    limit_ms  from the beginning of a transaction to its decision; Kafka's transaction.max.timeout.ms
    """

    grace_ms: int = 60_000
    limit_ms: int = 15 * 60_000


class Assessment(Value):
    """The assessment of a transaction: a word, a sentence, and the command to run, if any."""

    health: Health
    reason: str
    command: str = ""
