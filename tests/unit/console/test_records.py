"""The record browser: what became of each record, and how hostile ones are shown."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.console_facts import NOW_MS, ORDERS, describe, make_snapshot, pair
from tests.unit.console.test_history import Answers
from tests.unit.console.test_web import HOSTILE, Client, Page

from tallystick.client.errors import Unreachable
from tallystick.console.collect.feed import StateFeed
from tallystick.console.lookup.history import IdHistory
from tallystick.console.lookup.record_page import (
    CLIP_BYTES,
    RECORDS_MAX,
    BadQuery,
    BrowsedRecord,
    Clip,
    Format,
    RecordPage,
    RecordQuery,
    RecordVerdict,
    clip,
    parse_format,
    parse_query,
    read_stable,
    read_unstable,
)
from tallystick.console.model.snapshot import PartStatus, TopicFacts
from tallystick.console.views.records import CHARACTERS_MAX, escape_text, show_content
from tallystick.console.web.app import create_app
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    CorruptBatch,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
)
from tallystick.testing import FakeClock

V = RecordVerdict


# ------------------------------------------------------------------------------------ verdicts


class ToyLog:
    """A partition, with what became of each transaction by the plainest means."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.verdicts: list[RecordVerdict] = []
        self.open: dict[int, list[int]] = {}
        self.aborted: list[tuple[int, int]] = []

    def write(self, producer_id: int | None) -> None:
        """Append one record of a transaction, or of none."""
        at = len(self.batches)
        meta = BatchMeta(base_offset=at)
        if producer_id is not None:
            self.open.setdefault(producer_id, []).append(at)
            meta = replace(
                meta, producer_id=producer_id, producer_epoch=0, base_sequence=at, is_transactional=True
            )
        self.batches.append(encode_batch([Record(at, NOW_MS, b"k", b"v")], meta))
        self.verdicts.append(V.PLAIN if producer_id is None else V.OPEN)

    def end(self, producer_id: int, kind: ControlType) -> None:
        """Append a marker."""
        at = len(self.batches)
        marker = EndTransactionMarker(control_type=kind, coordinator_epoch=7)
        self.batches.append(encode_marker(marker, pair(producer_id, 0), timestamp_ms=NOW_MS, offset=at))
        self.verdicts.append(V.CONTROL)
        offsets = self.open.pop(producer_id, [])
        for offset in offsets:
            self.verdicts[offset] = V.COMMITTED if kind is ControlType.COMMIT else V.ABORTED
        if offsets and kind is ControlType.ABORT:
            self.aborted.append((producer_id, offsets[0]))

    @property
    def last_stable(self) -> int:
        return min((offsets[0] for offsets in self.open.values()), default=len(self.batches))

    def browse(self, position: int, end: int | None = None) -> list[BrowsedRecord]:
        """Read as the reader does: committed first, then from the last stable offset on."""
        stable = b"".join(self.batches[position : self.last_stable])
        records = list(read_stable(stable, position, self.aborted))
        position = max(position, self.last_stable)
        unstable = b"".join(self.batches[position:end])
        starts = {producer_id: offsets[0] for producer_id, offsets in self.open.items()}
        records += read_unstable(unstable, position, starts)
        return [record for _, some in records for record in some]


steps = st.lists(
    st.tuples(st.sampled_from(["write", "write", "plain", "commit", "abort"]), st.integers(0, 3)),
    max_size=40,
)


def build_log(story: Sequence[tuple[str, int]]) -> ToyLog:
    log = ToyLog()
    for step, producer_id in story:
        match step:
            case "write":
                log.write(producer_id)
            case "plain":
                log.write(None)
            case _:
                log.end(producer_id, ControlType.COMMIT if step == "commit" else ControlType.ABORT)
    return log


@given(steps, st.integers(0, 40))
def test_every_record_has_the_verdict_of_its_transaction(story: list[tuple[str, int]], first: int) -> None:
    """[CON-12]"""
    log = build_log(story)
    position = min(first, len(log.batches))
    records = log.browse(position)
    assert [(each.offset, each.verdict) for each in records] == list(enumerate(log.verdicts))[position:]
    assert all(each.is_held_back == (each.offset >= log.last_stable) for each in records)


@given(steps, st.integers(0, 40))
def test_what_was_not_fetched_makes_no_verdict_wrong(story: list[tuple[str, int]], end: int) -> None:
    """A marker that was not fetched leaves its records `ended`: never open, committed or aborted wrongly."""
    log = build_log(story)
    for record in log.browse(0, max(end, log.last_stable)):
        assert record.verdict in (log.verdicts[record.offset], V.ENDED)
        assert (record.verdict is V.OPEN) == (log.verdicts[record.offset] is V.OPEN)


def test_a_marker_says_what_it_is_and_of_which_coordinator() -> None:
    log = build_log([("write", 1), ("abort", 1)])
    data, marker = log.browse(0)
    assert (data.producer, data.marker) == (pair(1, 0), "")
    assert (marker.verdict, marker.marker, marker.coordinator_epoch) == (V.CONTROL, "ABORT", 7)


def test_a_page_may_begin_within_a_batch_and_end_in_one_that_was_cut_off() -> None:
    meta = BatchMeta(base_offset=0)
    whole = encode_batch([Record(at, NOW_MS, None, b"v") for at in range(4)], meta)
    cut = encode_batch([Record(4, NOW_MS, None, b"v")], replace(meta, base_offset=4))[:-1]
    ((next_offset, records),) = read_stable(whole + cut, 2, ())
    assert (next_offset, [each.offset for each in records]) == (4, [2, 3])


@pytest.mark.slow
def test_a_page_takes_no_more_of_a_large_batch_than_it_shows() -> None:
    many = [Record(at, NOW_MS, None, b"v", (("h" * 999, b"x" * 999),) * 60) for at in range(1_000)]
    ((next_offset, records),) = read_stable(encode_batch(many, BatchMeta(base_offset=0)), 7, ())
    assert (next_offset, [each.offset for each in records]) == (1_000, list(range(7, 7 + RECORDS_MAX + 1)))
    assert records[0].headers == (("h" * 256, Clip(b"x" * 256, 999)),) * 50


def test_damaged_bytes_are_no_records() -> None:
    batch = bytearray(encode_batch([Record(0, NOW_MS, None, b"v")], BatchMeta(base_offset=0)))
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch):
        list(read_stable(bytes(batch), 0, ()))


# ----------------------------------------------------------------------------------- questions


def test_a_url_asks_for_an_offset_a_time_or_the_newest() -> None:
    at = TopicPartition("t", 2)
    assert parse_query("t", {}) is None
    assert parse_query("t", {"partition": "2"}) == RecordQuery(partition=at)
    assert parse_query("t", {"partition": "2", "offset": "7"}) == RecordQuery(partition=at, offset=7)
    midnight = RecordQuery(partition=at, time_ms=1_795_564_800_000)
    for text in ("2026-11-25", "2026-11-25T00:00", "2026-11-25T01:00+01:00", "1795564800000"):
        assert parse_query("t", {"partition": "2", "time": text}) == midnight
    assert parse_format({"as": "hex"}) is Format.HEX
    assert parse_format({"as": "html"}) is Format.TEXT


@pytest.mark.parametrize(
    "query",
    [
        {"partition": "-1"},
        {"partition": "2147483648"},
        {"partition": "\u0661"},
        {"partition": "0", "offset": "1e3"},
        {"partition": "0", "offset": "9" * 5_000},
        {"partition": "0", "offset": str(2**63)},
        {"partition": "0", "time": "yesterday"},
    ],
)
def test_what_a_url_cannot_mean_is_said(query: dict[str, str]) -> None:
    with pytest.raises(BadQuery):
        parse_query("t", query)


@given(st.dictionaries(st.sampled_from(["partition", "offset", "time", "as"]), st.text(max_size=30)))
def test_any_url_is_a_question_or_refused(query: dict[str, str]) -> None:
    try:
        asked = parse_query("t", query)
    except BadQuery:
        return
    assert asked is None or (asked.offset or 0) >= 0


# ------------------------------------------------------------------------------------- contents


def test_contents_in_each_format() -> None:
    document = clip(b'{"b":1,"a":"\xc3\xa9\\u001b[31m"}')
    assert (show_content(document, Format.JSON) or document).text == (  # type: ignore[union-attr]
        '{\n  "b": 1,\n  "a": "\u00e9\\u001b[31m"\n}'
    )
    shown = show_content(clip(b"\x1b[31m\xff<b>\n"), Format.TEXT)
    assert shown is not None
    assert (shown.text, shown.size, shown.is_cut) == ("\\x1b[31m\\xff<b>\n", 10, False)
    hexed = show_content(clip(b"AB\x00"), Format.HEX)
    assert hexed is not None
    assert hexed.text == f"0000  {'41 42 00':<47}  AB."
    assert show_content(None, Format.TEXT) is None


def test_what_turns_the_direction_of_writing_is_an_escape() -> None:
    assert escape_text("a\u202eb\u2028c\x00\ud800") == "a\\u202eb\\u2028c\\x00\\ud800"


@given(st.binary(max_size=300), st.sampled_from(Format), st.integers(0, 10_000_000))
def test_whatever_is_in_a_record_becomes_bounded_printable_text(
    data: bytes, wanted: Format, more: int
) -> None:
    shown = show_content(Clip(data, len(data) + more), wanted)
    assert shown is not None
    assert all(line.isprintable() for line in shown.text.split("\n"))
    assert shown.is_cut or not more
    shown.text.encode()


@pytest.mark.parametrize("wanted", Format)
@pytest.mark.parametrize("data", [b"x" * 1_000_000, b"[" * 100_000, b"\xff" * 5_000], ids=str)
@pytest.mark.slow
def test_a_large_record_is_cut(data: bytes, wanted: Format) -> None:
    content = clip(data)
    assert content is not None
    assert len(content.data) == CLIP_BYTES
    shown = show_content(content, wanted)
    assert shown is not None
    assert (shown.is_cut, shown.size) == (True, len(data))
    assert len(shown.text) <= CHARACTERS_MAX


# --------------------------------------------------------------------------------------- pages


class Records(Answers):
    """Answers pages with one page of records, and downloads with one content."""

    def __init__(self, page: RecordPage, content: bytes | Exception | None = None) -> None:
        super().__init__(IdHistory())
        self.page, self.content = page, content
        self.asked: list[Any] = []

    async def browse_records(self, query: RecordQuery) -> RecordPage:
        self.asked.append(query)
        return self.page

    async def download(self, at: TopicPartition, offset: int, *, is_key: bool) -> bytes | None:
        self.asked.append((at, offset, is_key))
        if isinstance(self.content, Exception):
            raise self.content
        return self.content


def make_record(offset: int = 10, **more: Any) -> BrowsedRecord:
    fields: dict[str, Any] = {
        "verdict": V.OPEN,
        "producer": pair(5, 3),
        "is_held_back": True,
        "key": clip(HOSTILE.encode()),
        "value": clip(b"<script>" + b"x" * 1_000_000),
        "headers": ((HOSTILE, clip(b"\xff")), ("none", None)),
        "header_count": 60,
        **more,
    }
    return BrowsedRecord(offset=offset, timestamp_ms=NOW_MS, is_append_time=False, **fields)


PAGE = RecordPage(
    partition=ORDERS,
    first=10,
    next_offset=12,
    start=0,
    last_stable=10,
    end=90,
    records=(
        make_record(),
        make_record(
            11, verdict=V.CONTROL, marker="COMMIT", coordinator_epoch=4, key=None, value=None, headers=()
        ),
    ),
)


def make_client(
    page: RecordPage = PAGE, content: bytes | Exception | None = None, **topics: Any
) -> tuple[Client, Records]:
    feed, records = StateFeed(), Records(page, content)
    facts = {"status": PartStatus(read_ms=NOW_MS), "partition_counts": {"orders": 2}, **topics}
    feed.publish(replace(make_snapshot(describe()), topics=TopicFacts(**facts)))
    return Client(create_app(feed, None, FakeClock(NOW_MS), records)), records


def test_a_page_shows_verdicts_markers_and_the_open_transaction() -> None:
    client, records = make_client()
    answer = client.get("/topics/orders?partition=0&offset=10&as=text")
    page = Page(answer.text)
    text = " ".join(page.text.split())
    assert records.asked == [RecordQuery(partition=ORDERS, offset=10)]
    for part in (
        "open held back",
        "control COMMIT, coordinator epoch 4",
        "1,000,008 bytes",
        "57 more",
        "null",
    ):
        assert part.replace("57", "58") in text
    assert answer.text.count("<script") == 4
    assert "/transactions/pay-1" in page.links
    assert "/topics/orders?partition=0&offset=0&as=text" in page.links
    assert "/topics/orders?partition=0&offset=12&as=text" in page.links
    assert "/download?topic=orders&partition=0&offset=10&part=value" in page.links
    assert len(answer.text) < 60_000
    assert len(page.ids) == len(set(page.ids))
    rows = client.get("/topics/orders?partition=0&format=json&as=hex").json()["records"]["records"]
    assert [row["verdict"] for row in rows] == ["open", "control"]
    assert rows[0]["value"]["is_cut"] is True


@pytest.mark.slow
def test_nothing_is_read_unless_a_partition_is_asked_for() -> None:
    client, records = make_client()
    assert client.get("/topics/orders?format=json").json()["records"] is None
    assert client.get("/topics/unknown?partition=0&format=json").json()["records"] is None
    for bad in ("partition=2", "partition=x", "partition=0&offset=-1"):
        assert client.get(f"/topics/orders?{bad}&format=json").json()["problem"]
        assert client.get(f"/topics/orders?{bad}").status_code == 200
    assert records.asked == []


def test_a_cluster_that_is_away_is_not_asked() -> None:
    away = PartStatus(read_ms=1, tried_ms=2, away_since_ms=2, failures=("topics: refused",))
    client, records = make_client(status=away)
    found = client.get("/topics/orders?partition=0&format=json").json()["records"]
    assert (found["failure"], records.asked) == ("topics: refused", [])


def test_the_first_and_the_last_page_lead_no_further() -> None:
    page = replace(PAGE, first=0, start=0, next_offset=90, end=90)
    found = make_client(page)[0].get("/topics/orders?partition=0&format=json").json()["records"]
    assert (found["previous_offset"], found["next_offset"]) == (None, None)
    page = replace(PAGE, first=70, start=69)
    found = make_client(page)[0].get("/topics/orders?partition=0&format=json").json()["records"]
    assert found["previous_offset"] == 69 > 70 - RECORDS_MAX


# ----------------------------------------------------------------------------------- downloads

FILE = "/download?topic=orders&partition=0&offset=10"


def test_a_value_is_saved_and_never_shown() -> None:
    content = b"<script>alert(1)</script>" * 50_000
    client, records = make_client(content=content)
    answer = client.get(f"{FILE}&part=value")
    assert answer.content == content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment; filename=orders-0-10-value.bin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert records.asked == [(ORDERS, 10, False)]


def test_a_name_cannot_add_to_the_headers() -> None:
    client, _ = make_client(content=b"x")
    answer: httpx.Response = client.get("/download?topic=a%0d%0aSet-Cookie:x%22/../b&partition=0&offset=1")
    assert answer.headers["content-disposition"] == "attachment; filename=a__Set-Cookie_x__.._b-0-1-value.bin"
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("content", "url", "status"),
    [
        (None, FILE, 404),
        (Unreachable("localhost:1", "refused"), FILE, 502),
        (TimeoutError(), FILE, 502),
        (b"x", "/download", 400),
        (b"x", f"{FILE}&part=header", 400),
        (b"x", "/download?topic=orders&partition=0", 400),
        (b"x", "/download?topic=orders&partition=0&offset=x", 400),
    ],
)
def test_what_cannot_be_saved_is_said(content: Any, url: str, status: int) -> None:
    answer = make_client(content=content)[0].get(url)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/plain")
