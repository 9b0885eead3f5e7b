"""Entries of idle ids, committed again so that the table's log does not lose them. Pure.

What an id has decided last is in one commit, and a log keeps its commits for a time only
(`delta.logRetentionDuration`), while the writers of other ids go on. A pool lends the same few of its ids
most of the time, so that the others would be lost in a process that runs for months. Therefore a transaction
of any id of the store begins with committing the entry of one that was idle, if there is one [DW-24].
"""

from typing import Final

IDLE_MS: Final = 6 * 60 * 60 * 1000
"""How long an entry may be the last one of its id before it is committed again."""


class IdleEntries:
    """Time of the last commit of each id that the store has claimed.

    Its user changes it under a lock; `is_due` needs none.
    """

    def __init__(self) -> None:
        self._entries: dict[str, tuple[str, int]] = {}
        self._oldest_ms: int | None = None

    def note_commit(self, transactional_id: str, owner: str, now_ms: int) -> None:
        """Record a commit of an entry by its owner."""
        self._entries.pop(transactional_id, None)
        self._entries[transactional_id] = owner, now_ms  # the dict stays in the order of the commits
        self._note_oldest()

    def forget(self, transactional_id: str) -> None:
        """Forget an id that another writer has claimed."""
        self._entries.pop(transactional_id, None)
        self._note_oldest()

    def is_due(self, now_ms: int) -> bool:
        """Return whether an entry is to be committed again now."""
        oldest_ms = self._oldest_ms
        return oldest_ms is not None and now_ms - oldest_ms >= IDLE_MS

    def find_due(self, now_ms: int) -> tuple[str, str] | None:
        """Return the id and owner of the entry that is to be committed again now; None if there is none."""
        if not self.is_due(now_ms):
            return None
        transactional_id, (owner, _) = next(iter(self._entries.items()))
        return transactional_id, owner

    def _note_oldest(self) -> None:
        _, self._oldest_ms = next(iter(self._entries.values()), ("", None))
