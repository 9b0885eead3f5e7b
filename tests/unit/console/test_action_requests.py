"""Actions as URLs and as command lines: one and the same, whatever an id looks like."""

import shlex
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.meta.test_commands_in_texts import find_problem
from tests.support.console_facts import (
    SERVERS,
    STORE,
    describe,
    make_case,
    make_row,
    make_snapshot,
    make_store,
    pair,
)

from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.console.actions.request import (
    AbortPartition,
    ActionKind,
    ActionRequest,
    BadAction,
    CompleteByState,
    ForceTerminate,
    ResetOffsets,
    ResetTarget,
    ResolvePrefix,
    ResolveRow,
    ResolveRows,
    build_request,
    find_action_url,
    find_reset_url,
    format_action_command,
    format_action_url,
    format_confirmation,
    get_kind,
    get_subject,
)
from tallystick.console.model import commands
from tallystick.console.model.escaped import show
from tallystick.console.model.health import Limits
from tallystick.console.model.transactions import join_views
from tallystick.kernel.ids import TopicPartition

IDS = st.text(min_size=1, max_size=40).filter(lambda text: not text.startswith("-"))
TOPICS = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)
TARGETS = st.one_of(
    st.tuples(st.sampled_from([ResetTarget.EARLIEST, ResetTarget.LATEST]), st.just("")),
    st.tuples(st.just(ResetTarget.OFFSET), st.integers(0, 10**17).map(str)),
    st.tuples(st.just(ResetTarget.SHIFT), st.integers(-(10**17), 10**17).map(str)),
    st.tuples(st.just(ResetTarget.DATETIME), st.just("2026-11-21T12:00:00Z")),
)
REQUESTS = st.one_of(
    st.builds(ResolveRow, transactional_id=IDS, store=IDS),
    st.builds(
        ResolveRows,
        store=IDS,
        transactional_ids=st.lists(IDS, min_size=1, max_size=4, unique=True).map(tuple),
    ),
    st.builds(ResolvePrefix, prefix=IDS, store=st.none() | IDS),
    st.builds(
        AbortPartition,
        partition=st.builds(TopicPartition, TOPICS, st.integers(0, 999)),
        start_offset=st.integers(0, 10**17),
    ),
    st.builds(ForceTerminate, transactional_id=IDS),
    st.builds(CompleteByState, transactional_id=IDS, state=st.sampled_from(["", "5:3"])),
    st.builds(
        lambda group_id, target, topics: ResetOffsets(
            group_id=group_id, target=target[0], value=target[1], topics=tuple(dict.fromkeys(topics))
        ),
        IDS,
        TARGETS,
        st.lists(TOPICS, max_size=3),
    ),
)


def read_url(url: str) -> ActionRequest | None:
    parts = urlsplit(url)
    _, root, kind, key = parts.path.split("/")
    assert root == "actions"
    fields = parse_qsl(parts.query, keep_blank_values=True)
    ids = [value for name, value in fields if name == "id"]
    return build_request(ActionKind(kind), unquote(key), dict(fields), ids)


@given(REQUESTS)
def test_an_action_survives_its_url(request: ActionRequest) -> None:
    assert read_url(format_action_url(request)) == request


@given(REQUESTS)
def test_an_action_that_a_page_names_as_a_command_is_found_in_it(request: ActionRequest) -> None:
    url = find_action_url(format_action_command(request, SERVERS))
    match request:
        case CompleteByState():  # the state is for the operator to give
            assert read_url(url) is None
            assert url == f"/actions/complete/{url.rpartition('/')[2]}"
        case ResetOffsets():  # is offered for every group, and not by a command
            assert url == ""
            assert read_url(find_reset_url(request.group_id)) is None
        case ResolveRows():  # is offered for a selection
            assert url.startswith("/actions/resolve/")
        case _:
            assert read_url(url) == request


@pytest.mark.parametrize(
    "request_",
    [
        ResolveRow(transactional_id="pay-1", store=STORE),
        ResolveRows(store=STORE, transactional_ids=("pay-1", "pay-2")),
        ResolvePrefix(prefix="loud"),
        ResolvePrefix(prefix="loud", store=STORE),
        AbortPartition(partition=TopicPartition("orders", 3), start_offset=7),
        ForceTerminate(transactional_id="pay-1"),
        CompleteByState(transactional_id="pay-1", state="5:3"),
        *(
            ResetOffsets(group_id="g", target=target, value="1", topics=topics)
            for target in ResetTarget
            for topics in ((), ("orders", "paid:0,1"))
        ),
    ],
)
def test_every_command_line_can_be_typed(request_: ActionRequest) -> None:
    for force in (False, True):
        _, *words = shlex.split(format_action_command(request_, SERVERS, force=force))
        assert find_problem(words) is None, words


def test_what_every_verdict_offers_is_an_action() -> None:
    """The console decides once: its button is its command line. What only looks is no action."""
    hanging = make_case(HangingFinding.UNKNOWN_PRODUCER_ID, None, pair(77, 0), verdict=HangingVerdict.HANGING)
    snapshot = make_snapshot(
        describe("orphan", age_ms=10**7),
        describe("decided", age_ms=10**7),
        describe("halted", writer=pair(4, 9), age_ms=10**7),
        describe("slow", age_ms=10**7, timeout_ms=1_000),
        cases=[hanging],
        stores=[make_store(make_row("decided", pair(5, 3)), make_row("halted", pair(4, 10)))],
    )
    limits = Limits(grace_ms=0, limit_ms=0)
    urls = {
        each.transactional_id: find_action_url(each.assessment.command)
        for each in join_views(snapshot, limits, join_views(snapshot, limits))
    }
    assert urls == {
        None: "/actions/abort/orders-0?start-offset=10",
        "orphan": "/actions/complete/orphan",
        "decided": "/actions/resolve/decided?store=postgresql%3A%2F%2Fme%40host%2Fshop",
        "halted": "",
        "slow": "",
    }


@pytest.mark.parametrize(
    "command",
    [
        commands.describe_command(SERVERS, "a"),
        commands.find_hanging_command(SERVERS),
        commands.describe_group_command(SERVERS, "g"),
        commands.doctor_command(SERVERS),
        f"{commands.resolve_store_command(SERVERS, STORE, 'a')} --dry-run",
        f"{commands.resolve_prefix_command(SERVERS, 'p')} --dry-run",
        commands.accept_mixed_command(SERVERS, STORE, "a"),
        "",
    ],
)
def test_commands_that_change_nothing_are_no_actions(command: str) -> None:
    assert find_action_url(command) == ""


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("pay-1", "pay-1"),
        ("<b>&'", "<b>&'"),
        ("schlüssel 7", "schlüssel 7"),
        ("a\nb", "a\\nb"),
        (" a", "\\x20a"),
        ("\u202egnp", "\\u202egnp"),
        ("\x1b[31m", "\\x1b[31m"),
        ("pay\u0301", "pay\\u0301"),
        ("pay\u115f", "pay\\u115f"),
        ("pay\u2800", "pay\\u2800"),
    ],
)
def test_what_cannot_be_typed_is_typed_as_it_is_written_in_python(subject: str, expected: str) -> None:
    assert format_confirmation(ForceTerminate(transactional_id=subject)) == expected


@given(st.text(min_size=1))
def test_what_has_to_be_typed_can_be_seen_and_typed(subject: str) -> None:
    text = format_confirmation(ForceTerminate(transactional_id=subject))
    assert text.isprintable()
    assert text == text.strip()
    assert show(text, max_length=len(text)) == text
    assert text == subject or text.isascii()
    if subject.isascii() and subject.isprintable() and subject == subject.strip():
        assert text == subject


@pytest.mark.parametrize(
    ("kind", "key", "query", "problem"),
    [
        (ActionKind.RESOLVE, "", {"store": "s"}, "no id"),
        (ActionKind.RESOLVE, "a", {}, "no store"),
        (ActionKind.RESOLVE_ROWS, "s", {}, "0 ids are selected"),
        (ActionKind.ABORT, "orders", {"start-offset": "1"}, "not a partition"),
        (ActionKind.ABORT, "-0", {"start-offset": "1"}, "not a partition"),
        (ActionKind.ABORT, "orders-x", {"start-offset": "1"}, "not a partition"),
        (ActionKind.ABORT, "orders-99999999999", {"start-offset": "1"}, "not a partition"),
        (ActionKind.ABORT, "orders-0", {}, "not an offset"),
        (ActionKind.ABORT, "orders-0", {"start-offset": "-1"}, "not an offset"),
        (ActionKind.ABORT, "orders-0", {"start-offset": "9" * 30}, "not an offset"),
        (ActionKind.COMPLETE, "a", {"state": "5"}, "not the state"),
        (ActionKind.RESET_OFFSETS, "g", {"to": "somewhere"}, "none of"),
        (ActionKind.RESET_OFFSETS, "g", {"to": "to-offset"}, "not a whole number"),
        (ActionKind.RESET_OFFSETS, "g", {"to": "to-offset", "value": "-1"}, "not a whole number"),
        (ActionKind.RESET_OFFSETS, "g", {"to": "shift-by", "value": "1.5"}, "not a whole number"),
        (ActionKind.RESET_OFFSETS, "g", {"to": "to-datetime", "value": "soon"}, "not a time"),
        (ActionKind.RESET_OFFSETS, "g", {"to": "to-datetime", "value": "0001-01-01"}, "not a time"),
        (ActionKind.RESET_OFFSETS, "g", {"to": "to-latest", "topics": "a b/c"}, "b/c"),
        (ActionKind.RESET_OFFSETS, "g", {"to": "to-latest", "topics": "a:x"}, "a:x"),
    ],
)
def test_an_address_that_names_no_action_says_why(
    kind: ActionKind, key: str, query: dict[str, str], problem: str
) -> None:
    with pytest.raises(BadAction, match=problem):
        build_request(kind, key, query)


def test_what_is_to_be_chosen_is_left_open() -> None:
    assert build_request(ActionKind.COMPLETE, "a", {}) is None
    assert build_request(ActionKind.COMPLETE, "a", {"state": " "}) == CompleteByState(
        transactional_id="a", state=""
    )
    assert build_request(ActionKind.RESET_OFFSETS, "g", {"to": ""}) is None


def test_topics_are_read_as_the_command_reads_them() -> None:
    request = ResetOffsets(group_id="g", target=ResetTarget.LATEST, topics=("a", "b:0,2", "b:1"))
    assert request.list_topics() == {"a": (), "b": (0, 2, 1)}
    at = ResetOffsets(group_id="g", target=ResetTarget.DATETIME, value="1970-01-01T00:00:01")
    assert at.parse_value() == 1_000


def test_kind_and_subject_are_those_of_the_address() -> None:
    request = AbortPartition(partition=TopicPartition("a-b", 3), start_offset=7)
    assert (get_kind(request), get_subject(request)) == (ActionKind.ABORT, "a-b-3")
