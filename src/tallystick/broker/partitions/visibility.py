"""Visibility of records to a Fetch, and the sharing of its byte limits. Pure.

Source: ReplicaManager.readFromLog and DelayedFetch; KIP-74 for the limits, KIP-98 for isolation, KIP-320 for
leader epochs.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.limits import KIB

# Minimum size granted to an answer, however much other clients leave unread.
RESPONSE_BYTES_MIN: Final = 64 * KIB
NO_EPOCH: Final = -1  # on the wire: the client does not check epochs


class IsolationLevel(IntEnum):
    """Isolation level of a consumer."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


def find_readable_end(isolation: IsolationLevel, high_watermark: int, last_stable_offset: int) -> int:
    """Return the first offset a reader may not see: unsynced or, if asked, undecided [FET-1]."""
    if isolation is IsolationLevel.READ_COMMITTED:
        return min(high_watermark, last_stable_offset)
    return high_watermark


def check_leader_epoch(current: int, leader_epoch: int) -> Reject | None:
    """Refuse a client whose leader epoch is older or newer than ours (KIP-320)."""
    if current in (NO_EPOCH, leader_epoch):
        return None
    if current < leader_epoch:
        return Reject(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"the client has leader epoch {current}, but the partition has {leader_epoch}; refresh the"
            " metadata",
        )
    return Reject(
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"the client has leader epoch {current}, but the partition only has {leader_epoch}; retry",
    )


def limit_response_bytes(max_bytes: int, unread: int, room: int) -> int:
    """Return how many bytes an answer may hold, of `asked`, while `unread` bytes of others are buffered.

    At most a quarter of the remaining room, so that stalled readers get ever smaller shares and never use it
    up; and always a minimum, because an active reader must not wait for stalled ones [FET-2].
    """
    return min(max_bytes, max((room - unread) // 4, RESPONSE_BYTES_MIN))


@dataclass(slots=True)
class ByteBudget:
    """Bytes that one Fetch may still return.

    The first batch found is returned whole whatever its size, so that a reader always makes progress
    (KIP-74); after it, limits hold.
    """

    remaining: int
    is_first: bool = True

    def limit_partition(self, partition_max_bytes: int) -> int:
        return max(0, min(self.remaining, partition_max_bytes))

    def consume(self, size: int) -> None:
        if size:
            self.is_first = False
            self.remaining -= size

    @property
    def is_spent(self) -> bool:
        return self.remaining <= 0 and not self.is_first
