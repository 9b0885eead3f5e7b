"""Entries of our commits in the log of a lake table, and a driver's action after reading one. Pure.

A key has one entry, the last one: who owns it, and what was decided. Each commit of ours replaces the entry
and is bound to the version of the table that its writer has read: it becomes exactly the next version, or
nothing. That is the fence [LAK-1]:

    claim     read version v, ask the cluster whether this driver is the last one, commit the owner as v + 1
    decide    read version v, find the own owner in the entry, commit files and decision as v + 1

A driver that was replaced finds another owner at v; or it has read v before the newer driver's claim, and
then v + 1 is taken. No third case exists, whatever a library would do to merge two appends: the commit is not
merged with anything, and if another writer has v + 1, everything begins with reading again.

Source: Delta's protocol, "Delta Log Entries": a writer creates the file of the next version only if it does
not exist. docs/design/lake-tables.md.
"""

import json
from enum import Enum, auto
from typing import Final

from tallystick.kernel.value import Value
from tallystick.lake.errors import BadEntry, EntryLost

VERSION: Final = 1
METADATA_KEY: Final = "tallystick"
"""The key of an entry in a commit's metadata."""


class LakeEntry(Value, kw_only=True):
    """The state of one key in a table.

    owner    the last one that has claimed the key
    commit   a random name of the commit that wrote this entry, unlike that of any other
    payload  what the last decision says; None before the first one
    """

    key: str
    owner: str
    commit: str
    payload: str | None = None


def encode_entry(entry: LakeEntry) -> str:
    """Return the text of an entry, for the metadata of its commit."""
    fields = {"v": VERSION, "key": entry.key, "owner": entry.owner, "commit": entry.commit}
    return json.dumps({**fields, "payload": entry.payload}, separators=(",", ":"), ensure_ascii=False)


def decode_entry(text: object) -> LakeEntry:
    """Parse the text of an entry. Raises: BadEntry."""
    try:
        fields = json.loads(str(text))
        if fields["v"] != VERSION:
            raise BadEntry(f"an entry of version {fields['v']!r}, and this tallystick reads {VERSION}")
        payload = fields["payload"]
        return LakeEntry(
            key=str(fields["key"]),
            owner=str(fields["owner"]),
            commit=str(fields["commit"]),
            payload=None if payload is None else str(payload),
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise BadEntry(f"{str(text)[:60]!r} is no entry: {type(exc).__name__} {exc}") from exc


def choose_entry(text: str | None, mark: str | None) -> LakeEntry | None:
    """Return the entry of a key in a table that keeps it in one place, and marks its commit in another.

    An entry without its mark is none that a decision may rest on, nor is it nothing [LAK-6].

    Args:
        text: the entry as it is kept; None if there is none.
        mark: the name of the commit that is marked as the last one of the key; None if there is no mark.
    Raises: EntryLost if only one of them is there, or they are of two commits; BadEntry.
    """
    if text is None:
        if mark is None:
            return None
        raise EntryLost(f"commit {mark} is marked as the last one, and what it says is gone")
    entry = decode_entry(text)
    if mark is None:
        raise EntryLost(f"what commit {entry.commit} says is there, and the mark of that commit is gone")
    if mark != entry.commit:
        raise EntryLost(
            f"commit {mark!r} is marked as the last one, and what commit {entry.commit} says is there"
        )
    return entry


class Standing(Enum):
    """Relation of the table's entry to the commit that its writer wants to make."""

    OWN = auto()  # the writer owns the key
    COMMITTED = auto()  # this very commit is in the table: its answer was lost
    REPLACED = auto()  # another one has claimed the key
    UNCLAIMED = auto()  # nothing was ever claimed here: the table is not the one of the claim


class Action(Enum):
    """Action of the writer."""

    COMMIT = "commit as the next version"
    DONE = "nothing: it is committed"
    STOP = "stop: it is fenced"


ACTIONS: Final = {
    Standing.OWN: Action.COMMIT,
    Standing.COMMITTED: Action.DONE,
    Standing.REPLACED: Action.STOP,
    Standing.UNCLAIMED: Action.STOP,
}


def assess_standing(current: LakeEntry | None, wanted: LakeEntry) -> Standing:
    """Compare the entry that was read with the one that is to be committed by the same owner."""
    if current is None:
        return Standing.UNCLAIMED
    if current.commit == wanted.commit:
        return Standing.COMMITTED
    return Standing.OWN if current.owner == wanted.owner else Standing.REPLACED


class CommitOutcome(Enum):
    """Outcome of an attempt to commit as one version."""

    COMMITTED = auto()  # this commit is that version
    BEATEN = auto()  # another writer's commit is: this one is not in the table and never will be
    UNKNOWN = auto()  # there is no such version yet: it may still arrive


def assess_outcome(entry_at_version: LakeEntry | None, wanted: LakeEntry, *, exists: bool) -> CommitOutcome:
    """Return what became of a commit whose answer was an error, from what the table has as its version.

    Args:
        entry_at_version: the entry in that version; None if it has none of ours.
        exists: that version exists.
    """
    if not exists:
        return CommitOutcome.UNKNOWN
    if entry_at_version is not None and entry_at_version.commit == wanted.commit:
        return CommitOutcome.COMMITTED
    return CommitOutcome.BEATEN


def find_unsettled(unsettled_version: int | None, version: int) -> int | None:
    """Return the version after which a commit of unknown outcome may still arrive, once the table was read.

    An attempt becomes the version after the one that it was made for, or nothing. As long as that version
    does not exist, the attempt may arrive, also while later ones are beaten.

    Args:
        unsettled_version: that of the attempts before; None if the outcome of each is known.
        version: the one that was read.
    """
    return None if unsettled_version is None or version > unsettled_version else unsettled_version
