"""Which entry of a lake store is committed again, and when."""

from tallystick.lake.dual_writes.model import IDLE_MS, IdleEntries


def test_the_entry_that_is_idle_longest_is_due_first() -> None:
    entries = IdleEntries()
    assert entries.find_due(10 * IDLE_MS) is None
    entries.note_commit("a", "owner of a", 0)
    entries.note_commit("b", "owner of b", 1)
    assert entries.find_due(IDLE_MS - 1) is None
    assert entries.find_due(IDLE_MS) == ("a", "owner of a")
    entries.note_commit("a", "owner of a", IDLE_MS)
    assert entries.find_due(IDLE_MS) is None
    assert entries.find_due(IDLE_MS + 1) == ("b", "owner of b")


def test_the_last_owner_counts_and_a_lost_id_is_forgotten() -> None:
    entries = IdleEntries()
    entries.note_commit("a", "first", 0)
    entries.note_commit("a", "second", 0)
    assert entries.find_due(IDLE_MS) == ("a", "second")
    entries.forget("a")
    entries.forget("a")
    assert entries.find_due(IDLE_MS) is None
