"""What a Fetch may see, and how its byte limits are shared out. Pure.

Source: ReplicaManager.readFromLog and DelayedFetch; KIP-74 for the limits, KIP-98 for isolation, KIP-320 for
leader epochs.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.limits import KIB

# What an answer may hold however much others leave unread.
ANSWER_BYTES_MIN: Final = 64 * KIB
NO_EPOCH: Final = -1  # the wire's "this client does not check epochs"


class Isolation(IntEnum):
    """Which records a reader wants to see."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


def readable_end(isolation: Isolation, high_watermark: int, last_stable_offset: int) -> int:
    """First offset a reader may not see: nothing unsynced, and, if asked, nothing undecided [FET-1]."""
    if isolation is Isolation.READ_COMMITTED:
        return min(high_watermark, last_stable_offset)
    return high_watermark


def check_leader_epoch(current: int, ours: int) -> Reject | None:
    """Refuse a client whose metadata is older or newer than ours (KIP-320)."""
    if current in (NO_EPOCH, ours):
        return None
    if current < ours:
        return Reject(ErrorCode.FENCED_LEADER_EPOCH, f"client is at leader epoch {current}, now {ours}")
    return Reject(ErrorCode.UNKNOWN_LEADER_EPOCH, f"client is at leader epoch {current}, here {ours}")


def answer_bytes(asked: int, unread: int, room: int) -> int:
    """How many bytes one answer may hold, of `asked`, while `unread` bytes of others wait for their readers.

    At most a quarter of the room that is left, so that readers who stop share it out ever smaller and never
    use it up; and always a little, because who does read must not wait for those who do not [FET-2].
    """
    return min(asked, max((room - unread) // 4, ANSWER_BYTES_MIN))


@dataclass(slots=True)
class ByteBudget:
    """How much one Fetch may still return.

    The first batch found is returned whole whatever its size, so that a reader always moves on (KIP-74);
    after it, limits hold.
    """

    remaining: int
    first: bool = True

    def limit(self, partition_max_bytes: int) -> int:
        return max(0, min(self.remaining, partition_max_bytes))

    def took(self, size: int) -> None:
        if size:
            self.first = False
            self.remaining -= size

    @property
    def spent(self) -> bool:
        return self.remaining <= 0 and not self.first
