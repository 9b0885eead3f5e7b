"""Brokers and databases that take no writes: their disk is full, has failed, or may only be read. Pure.

While one of them refuses writes, writers fail there, and so does most of what would end their transactions.
So it is said before them, with what makes room.
"""

from collections.abc import Iterator
from typing import Final

from tallystick.console.model.commands import retention_command
from tallystick.console.model.snapshot import Snapshot, StoreFacts, Volume
from tallystick.console.views.texts import format_bytes
from tallystick.kernel.value import Value

TOPICS_MAX: Final = 3


class NoWrites(Value, kw_only=True):
    """A broker or a store that takes no writes.

    kind     `broker` or `store`
    subject  what takes none: `broker 0`, or the name of a store
    reason   why, and what to do, in sentences
    command  that makes room; "" where no command of tallystick does
    """

    kind: str
    subject: str
    reason: str
    command: str = ""


def list_refusals(snapshot: Snapshot) -> tuple[NoWrites, ...]:
    """List what takes no writes: brokers first."""
    brokers = [
        refusal
        for node_id, volumes in sorted(snapshot.cluster.volumes.items())
        for volume in volumes
        for refusal in _assess_broker(node_id, volume, snapshot.bootstrap_servers)
    ]
    return (*brokers, *(refusal for store in snapshot.stores for refusal in _assess_store(store)))


def _assess_broker(node_id: int, volume: Volume, servers: str) -> Iterator[NoWrites]:
    subject = f"broker {node_id}"
    if volume.failure:
        yield NoWrites(
            kind="broker",
            subject=subject,
            reason=f"It cannot use {volume.path}: {volume.failure}. The disk has failed, or was full; the "
            "broker's log says which. Mend it, and start the broker again.",
        )
    elif volume.is_full:
        largest = sorted(volume.topic_bytes.items(), key=lambda each: -each[1])[:TOPICS_MAX]
        sizes = ", ".join(f"{name} ({format_bytes(size)})" for name, size in largest)
        yield NoWrites(
            kind="broker",
            subject=subject,
            reason=f"{_describe_full(volume)} Producers are refused, or will be soon; what is decided is "
            "still ended from a reserve. Make room: a larger disk, or less to keep."
            + (f" The largest topics there: {sizes}." if sizes else ""),
            command=retention_command(servers, largest[0][0]) if largest else "",
        )


def _assess_store(store: StoreFacts) -> Iterator[NoWrites]:
    volume = store.volume
    consequence = "Its writers fail, and so may recovery."
    if store.refusal:
        yield NoWrites(
            kind="store", subject=store.name, reason=f"It takes no writes: {store.refusal}. {consequence}"
        )
    elif volume is not None and volume.is_read_only:
        yield NoWrites(
            kind="store",
            subject=store.name,
            reason=f"It takes no writes: the file system of {volume.path} is mounted to be read only. "
            f"{consequence} Mount it to be written.",
        )
    elif volume is not None and volume.is_full:
        yield NoWrites(
            kind="store",
            subject=store.name,
            reason=f"{_describe_full(volume)} {consequence} Make room there; then recover what they left.",
        )


def _describe_full(volume: Volume) -> str:
    usable, total = format_bytes(volume.usable_bytes), format_bytes(volume.total_bytes)
    return f"Its disk is full: {usable} of {total} are left for {volume.path}."
