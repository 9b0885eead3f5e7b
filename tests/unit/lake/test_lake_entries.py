"""What an entry says, and what its reader may do: every case of the tables."""

from itertools import product

import pytest

from tallystick.lake.entries import (
    ACTIONS,
    Action,
    CommitOutcome,
    LakeEntry,
    Standing,
    assess_outcome,
    assess_standing,
    choose_entry,
    decode_entry,
    encode_entry,
    find_unsettled,
)
from tallystick.lake.errors import BadEntry, EntryLost

OWNERS = ("7/1", "7/2")
COMMITS = ("a", "b")
SMALL = [
    None,
    *(LakeEntry(key="p", owner=owner, commit=commit) for owner, commit in product(OWNERS, COMMITS)),
]


def test_only_the_owner_commits_and_nothing_is_committed_twice() -> None:
    """[LAK-1] All combinations of what the table has and what is to be committed."""
    standings = set()
    for current, wanted in product(SMALL, filter(None, SMALL)):
        standing = assess_standing(current, wanted)
        standings.add(standing)
        is_there = current is not None and current.commit == wanted.commit
        is_owner = current is not None and current.owner == wanted.owner
        assert (ACTIONS[standing] is Action.DONE) == is_there
        assert (ACTIONS[standing] is Action.COMMIT) == (is_owner and not is_there)
    assert standings == set(Standing) == set(ACTIONS)


def test_an_error_is_an_outcome_only_if_the_version_exists() -> None:
    """[LAK-1] A version that does not exist yet may still be written by the request whose answer was lost."""
    outcomes = set()
    for current, wanted, exists in product(SMALL, filter(None, SMALL), (False, True)):
        outcome = assess_outcome(current, wanted, exists=exists)
        outcomes.add(outcome)
        assert (outcome is CommitOutcome.UNKNOWN) == (not exists)
        if outcome is CommitOutcome.COMMITTED:
            assert current is not None
            assert current.commit == wanted.commit
    assert outcomes == set(CommitOutcome)


@pytest.mark.parametrize(
    ("unsettled_version", "version", "expected"),
    [(None, 5, None), (5, 5, 5), (5, 6, None), (5, 9, None)],
)
def test_an_unknown_outcome_is_settled_by_the_version_that_it_was_for(
    unsettled_version: int | None, version: int, expected: int | None
) -> None:
    """[LAK-1] Not by an attempt that another writer beats."""
    assert find_unsettled(unsettled_version, version) == expected


@pytest.mark.parametrize("payload", [None, "", '{"a":"ü \\" \\n"}'])
def test_an_entry_is_read_as_it_was_written(payload: str | None) -> None:
    entry = LakeEntry(key="p/database", owner="7/1", commit="c", payload=payload)
    assert decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"v":2}', '{"v":1,"key":"p"}', None, '{"v":1,"key":"p","owner":"o","commit":"c"}'],
)
def test_anything_else_is_no_entry(text: object) -> None:
    with pytest.raises(BadEntry):
        decode_entry(text)


@pytest.mark.parametrize(
    ("commit", "mark", "why"),
    [
        (None, None, None),
        ("c", "c", None),
        (None, "c", "commit c is marked as the last one, and what it says is gone"),
        ("c", None, "what commit c says is there, and the mark of that commit is gone"),
        ("c", "d", "commit 'd' is marked as the last one, and what commit c says is there"),
        ("c", "", "commit '' is marked as the last one, and what commit c says is there"),
    ],
)
def test_an_entry_and_its_mark_are_of_one_commit(
    commit: str | None, mark: str | None, why: str | None
) -> None:
    """[LAK-6] Half an entry is an error, whichever half is gone: never nothing."""
    entry = None if commit is None else LakeEntry(key="p/database", owner="7/1", commit=commit, payload="d")
    text = None if entry is None else encode_entry(entry)
    if why is None:
        assert choose_entry(text, mark) == entry
        return
    with pytest.raises(EntryLost) as raised:
        choose_entry(text, mark)
    assert str(raised.value) == why
