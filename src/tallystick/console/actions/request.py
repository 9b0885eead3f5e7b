"""The actions of an operator: one value for each, as a URL and as a command line. Pure.

    ResolveRow       commit or abort a transaction, as the row of its database says
    ResolveRows      the same for several ids of one database, each by its own row
    ResolvePrefix    finish what a Spark query left, as its last decision says
    AbortPartition   write an ABORT marker for one transaction in one partition (KIP-664)
    ForceTerminate   abort the open transaction of an id and fence its producer (KIP-939)
    CompleteByState  commit or abort a prepared transaction by the state that its other side stored (KIP-939)
    ResetOffsets     move the committed offsets of a group without members

The console decides nowhere a second time which action a transaction needs: its verdict names a command line,
and `find_action_url` reads the action from that.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, assert_never
from urllib.parse import quote, unquote, urlencode

from tallystick.client.transactions.prepared import BadPreparedTxnState, PreparedTxnState
from tallystick.console.model import commands
from tallystick.console.model.escaped import show, split_words
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import INT64_MAX, TopicPartition
from tallystick.kernel.value import Value, replace

DRY_RUN_PATH: Final = "/actions"
RUN_PATH: Final = "/run"

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}(:[0-9]{1,9}(,[0-9]{1,9}){0,99})?", re.ASCII)
_TOPICS_MAX: Final = 100
IDS_MAX: Final = 100
"""Ids that one dry run resolves: as many as a page lists."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class BadAction(TallystickError):
    """A URL names no action, or not all of it."""


class ActionKind(Enum):
    """The action of a URL; the value stands in its path."""

    RESOLVE = "resolve"
    RESOLVE_ROWS = "resolve-rows"
    RESOLVE_PREFIX = "resolve-prefix"
    ABORT = "abort"
    FORCE_TERMINATE = "force-terminate"
    COMPLETE = "complete"
    RESET_OFFSETS = "reset-offsets"


class ResolveRow(Value, kw_only=True):
    """Recover one id by its row in a store; `store` is the URL without its password."""

    transactional_id: str
    store: str


class ResolveRows(Value, kw_only=True):
    """Recover several ids by their rows in one store, named as in `ResolveRow`."""

    store: str
    transactional_ids: tuple[str, ...]


class ResolvePrefix(Value, kw_only=True):
    """Finish what a Spark query left; `store` is the database of its decisions, None if Kafka has them."""

    prefix: str
    store: str | None = None


class AbortPartition(Value, kw_only=True):
    """End the transaction that begins at `start_offset`, in this partition alone."""

    partition: TopicPartition
    start_offset: int


class ForceTerminate(Value, kw_only=True):
    """Abort what an id has open, and fence its producer."""

    transactional_id: str


class CompleteByState(Value, kw_only=True):
    """Decide a prepared transaction by a stored state; the empty state stands for none."""

    transactional_id: str
    state: str


class ResetTarget(Enum):
    """The target of a reset; the value is the option of the command without its dashes."""

    EARLIEST = "to-earliest"
    LATEST = "to-latest"
    OFFSET = "to-offset"
    DATETIME = "to-datetime"
    SHIFT = "shift-by"

    @property
    def needs_value(self) -> bool:
        return self not in (ResetTarget.EARLIEST, ResetTarget.LATEST)


class ResetOffsets(Value, kw_only=True):
    """Move the offsets of a group.

    topics  as the command takes them: TOPIC, or TOPIC:0,1; empty: every partition with a committed offset
    value   an offset, a time, or a number of records; empty where the target needs none
    """

    group_id: str
    target: ResetTarget
    value: str = ""
    topics: tuple[str, ...] = ()

    def parse_value(self) -> int:
        """Return the offset, time in ms or number of records; 0 if none is needed. Raises: BadAction."""
        if not self.target.needs_value:
            return 0
        if self.target is ResetTarget.DATETIME:
            return _parse_time_ms(self.value)
        is_negative = self.target is ResetTarget.OFFSET and self.value.startswith("-")
        if not _INTEGER.fullmatch(self.value) or is_negative:
            raise BadAction(f"{self.target.value}: {self.value!r} is not a whole number of records")
        return int(self.value)

    def list_topics(self) -> Mapping[str, tuple[int, ...]]:
        """Return the partitions of each topic; none stands for all of them."""
        numbers: dict[str, tuple[int, ...]] = {}
        for text in self.topics:
            topic, _, some = text.partition(":")
            numbers[topic] = (*numbers.get(topic, ()), *(int(each) for each in some.split(",") if each))
        return numbers


ActionRequest = (
    ResolveRow
    | ResolveRows
    | ResolvePrefix
    | AbortPartition
    | ForceTerminate
    | CompleteByState
    | ResetOffsets
)


class ActionAddress(Value, kw_only=True):
    """An action as a page is asked for it.

    subject  an id, a prefix, a partition, a group, or the store of several ids
    query    what else it needs, as in the URL; the operator has to choose what is missing
    ids      the ids of an action on several
    """

    kind: ActionKind
    subject: str
    query: Mapping[str, str] = {}
    ids: tuple[str, ...] = ()


def get_kind(request: ActionRequest) -> ActionKind:
    """Return the kind of an action."""
    match request:
        case ResolveRow():
            return ActionKind.RESOLVE
        case ResolveRows():
            return ActionKind.RESOLVE_ROWS
        case ResolvePrefix():
            return ActionKind.RESOLVE_PREFIX
        case AbortPartition():
            return ActionKind.ABORT
        case ForceTerminate():
            return ActionKind.FORCE_TERMINATE
        case CompleteByState():
            return ActionKind.COMPLETE
        case ResetOffsets():
            return ActionKind.RESET_OFFSETS


def get_subject(request: ActionRequest) -> str:
    """Return what an action is about: an id, a prefix, a partition, a group, or the store of several ids."""
    match request:
        case ResolveRows():
            return request.store
        case ResolveRow() | ForceTerminate() | CompleteByState():
            return request.transactional_id
        case ResolvePrefix():
            return request.prefix
        case AbortPartition():
            return str(request.partition)
        case ResetOffsets():
            return request.group_id


def format_confirmation(request: ActionRequest) -> str:
    """Return what has to be typed: the subject, in the form of a Python literal if it cannot be typed.

    Ids are chosen by clients: one with a line break, a change of writing direction or a character that is not
    drawn would be shown as something else than it is.
    """
    subject = get_subject(request)
    is_plain = show(subject, max_length=len(subject)) == subject == subject.strip()
    return subject if is_plain else subject.encode("unicode_escape").decode("ascii").replace(" ", "\\x20")


def build_request(
    kind: ActionKind, key: str, query: Mapping[str, str], quoted_ids: Sequence[str] = ()
) -> ActionRequest | None:
    """Build the action of a URL; None if it leaves open what the operator has to choose.

    Args:
        key: the rest of the path: the subject.
        quoted_ids: of an action on several ids, each as in a path: a page shows what is invisible as text.

    Raises: BadAction.
    """
    if not key:
        raise BadAction("the address names no id")
    match kind:
        case ActionKind.RESOLVE:
            if "store" not in query:
                raise BadAction("the address names no store")
            return ResolveRow(transactional_id=key, store=query["store"])
        case ActionKind.RESOLVE_ROWS:
            ids = tuple(dict.fromkeys(map(unquote, quoted_ids)))
            if not 0 < len(ids) <= IDS_MAX:
                raise BadAction(f"{len(ids)} ids are selected; select 1 to {IDS_MAX}")
            return ResolveRows(store=key, transactional_ids=ids)
        case ActionKind.RESOLVE_PREFIX:
            return ResolvePrefix(prefix=key, store=query.get("store") or None)
        case ActionKind.ABORT:
            return _build_abort(key, query.get("start-offset", ""))
        case ActionKind.FORCE_TERMINATE:
            return ForceTerminate(transactional_id=key)
        case ActionKind.COMPLETE:
            return _build_completion(key, query.get("state"))
        case ActionKind.RESET_OFFSETS:
            return _build_reset(key, query)


def _build_abort(key: str, start_offset: str) -> AbortPartition:
    topic, dash, number = key.rpartition("-")
    if not dash or not topic or not (number.isascii() and number.isdigit() and len(number) <= 9):
        raise BadAction(f"{key!r} is not a partition, such as orders-0")
    if not _INTEGER.fullmatch(start_offset) or start_offset.startswith("-"):
        raise BadAction(f"start-offset: {start_offset!r} is not an offset")
    return AbortPartition(partition=TopicPartition(topic, int(number)), start_offset=int(start_offset))


def _build_completion(key: str, state: str | None) -> CompleteByState | None:
    if state is None:
        return None
    try:
        return CompleteByState(transactional_id=key, state=str(PreparedTxnState(state.strip())))
    except BadPreparedTxnState as exc:
        raise BadAction(f"state: {exc}") from exc


def _build_reset(key: str, query: Mapping[str, str]) -> ResetOffsets | None:
    if not query.get("to"):
        return None
    try:
        target = ResetTarget(query["to"])
    except ValueError:
        raise BadAction(
            f"to: {query['to']!r} is none of {', '.join(each.value for each in ResetTarget)}"
        ) from None
    topics = tuple(dict.fromkeys(query.get("topics", "").split()))
    wrong = [text for text in topics if not _TOPIC.fullmatch(text)]
    if wrong or len(topics) > _TOPICS_MAX:
        raise BadAction(
            f"topics: {' '.join(wrong) or len(topics)}: give TOPIC or TOPIC:0,1, with blanks between"
        )
    request = ResetOffsets(
        group_id=key,
        target=target,
        value=query.get("value", "").strip() if target.needs_value else "",
        topics=topics,
    )
    request.parse_value()
    return request


def _parse_time_ms(text: str) -> int:
    """Parse milliseconds since 1970 or an ISO 8601 time, UTC unless it says otherwise. Raises: BadAction."""
    if _INTEGER.fullmatch(text) and not text.startswith("-"):
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        at_ms = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        at_ms = -1
    if not 0 <= at_ms <= INT64_MAX:
        raise BadAction(f"to-datetime: {text!r} is not a time like 2026-11-21T12:00:00Z")
    return at_ms


# ------------------------------------------------------------------------------------ as text


def locate_action(request: ActionRequest) -> ActionAddress:
    """Return the address of an action; `build_request` reads it."""
    query: dict[str, str] = {}
    match request:
        case ResolveRow():
            query = {"store": request.store}
        case ResolveRows():
            return replace(_locate(request, {}), ids=request.transactional_ids)
        case ResolvePrefix():
            query = {"store": request.store or ""}
        case AbortPartition():
            query = {"start-offset": str(request.start_offset)}
        case ForceTerminate():
            pass
        case CompleteByState():
            return _locate(request, {"state": request.state})
        case ResetOffsets():
            query = {"to": request.target.value, "value": request.value, "topics": " ".join(request.topics)}
        case _:
            assert_never(request)
    return _locate(request, {name: value for name, value in query.items() if value})


def _locate(request: ActionRequest, query: Mapping[str, str]) -> ActionAddress:
    return ActionAddress(kind=get_kind(request), subject=get_subject(request), query=query)


def format_action_url(request: ActionRequest, path: str = DRY_RUN_PATH) -> str:
    """Return the URL of an action's dry run."""
    return format_address(locate_action(request), path)


def format_address(address: ActionAddress, path: str = DRY_RUN_PATH) -> str:
    """Return an address as a URL."""
    fields = [*address.query.items(), *(("id", quote(each, safe="")) for each in address.ids)]
    query = f"?{urlencode(fields)}" if fields else ""
    return f"{path}/{address.kind.value}/{quote(address.subject, safe='')}{query}"


def format_action_command(request: ActionRequest, servers: str, *, force: bool = False) -> str:
    """Return the command line that does the same."""
    match request:
        case ResolveRow():
            return commands.resolve_store_command(servers, request.store, request.transactional_id)
        case ResolveRows():
            return commands.resolve_store_command(servers, request.store, *request.transactional_ids)
        case ResolvePrefix():
            return commands.resolve_prefix_command(servers, request.prefix, store=request.store or "")
        case CompleteByState():
            return commands.complete_command(servers, request.transactional_id, request.state)
        case ResetOffsets():
            value = (request.value,) if request.target.needs_value else ()
            topics = [word for topic in request.topics for word in ("--topic", topic)] or ["--all-topics"]
            where = (*topics, f"--{request.target.value}", *value)
            return commands.reset_offsets_command(servers, request.group_id, *where)
        case AbortPartition():
            line = commands.abort_command(servers, request.partition, request.start_offset)
        case ForceTerminate():
            line = commands.force_terminate_command(servers, request.transactional_id)
        case _:
            assert_never(request)
    return f"{line} --force" if force else line


def find_reset_url(group_id: str) -> str:
    """Return the URL where the new offsets of a group are chosen."""
    return format_address(ActionAddress(kind=ActionKind.RESET_OFFSETS, subject=group_id))


def find_rows_url(store: str) -> str:
    """Return the URL to which a form adds the ids that are to be resolved together."""
    return format_address(ActionAddress(kind=ActionKind.RESOLVE_ROWS, subject=store))


def is_resolvable(command: str, store: str) -> bool:
    """Return whether a command line resolves one id by its row in this store."""
    address = find_action(command)
    return address is not None and address.kind is ActionKind.RESOLVE and address.query.get("store") == store


def find_action_url(command: str) -> str:
    """Return the URL of the action that a command line of a page stands for; empty if it changes nothing."""
    address = find_action(command)
    return "" if address is None else format_address(address)


def find_action(command: str) -> ActionAddress | None:
    """Return the action that a command line of a page stands for; None if it changes nothing."""
    words = split_words(command)
    if len(words) < 3 or words[1] != "transactions" or {"--dry-run", "--accept-mixed"} & set(words):
        return None
    options = dict(zip(words[3::2], words[4::2], strict=False))
    name, store = options.get("--transactional-id", ""), options.get("--store")
    match words[2]:
        case "resolve" if {store, options.get("--decisions")} & {"URL", "TOPIC"}:
            return None  # where the decisions are is for the operator to say
        case "resolve" if "--prefix" in options:
            return locate_action(ResolvePrefix(prefix=options["--prefix"], store=store))
        case "resolve" if store is not None and name:
            return locate_action(ResolveRow(transactional_id=name, store=store))
        case "abort":
            at = TopicPartition(options["--topic"], int(options["--partition"]))
            return locate_action(AbortPartition(partition=at, start_offset=int(options["--start-offset"])))
        case "force-terminate":
            return locate_action(ForceTerminate(transactional_id=name))
        case "complete":  # its STATE is for the operator to give
            return ActionAddress(kind=ActionKind.COMPLETE, subject=words[-2])
    return None
