"""Which entries of a store's ids are committed again, so that the table's log does not lose them. Pure.

What an id has decided last is in one commit, and a log keeps its commits for a time only
(`delta.logRetentionDuration`), while the writers of other ids go on. A pool lends the same few of its ids
most of the time, so that the others would be lost in a process that runs for months. Therefore a transaction
of any id of the store begins with committing the entry of one that was idle, if there is one [DW-24].
"""

from typing import Final

IDLE_MS: Final = 6 * 60 * 60 * 1000
"""How long an entry may be the last one of its id before it is committed again."""


class IdleEntries:
    """When the entry of each id that the store has claimed was committed last."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[str, int]] = {}

    def note_commit(self, transactional_id: str, owner: str, now_ms: int) -> None:
        """Note a commit of an entry by its owner."""
        self._entries.pop(transactional_id, None)
        self._entries[transactional_id] = owner, now_ms  # the dict stays in the order of the commits

    def find_due(self, now_ms: int) -> tuple[str, str] | None:
        """Return the id and owner of the entry that is to be committed again now; None if there is none."""
        for transactional_id, (owner, committed_ms) in self._entries.items():
            return (transactional_id, owner) if now_ms - committed_ms >= IDLE_MS else None
        return None

    def forget(self, transactional_id: str) -> None:
        """Forget an id that another writer has claimed."""
        self._entries.pop(transactional_id, None)
