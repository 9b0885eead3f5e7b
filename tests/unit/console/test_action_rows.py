"""Several ids in one dry run: one page, one confirmation, one ticket, and an audit line for each id."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.console_facts import (
    STORE,
    describe,
    make_row,
    make_snapshot,
    make_store,
    pair,
    read_again,
)
from tests.support.console_operator import Form
from tests.unit.console.test_action_pages import MemoryReadings, Site, Visit

from tallystick.console.actions.plan import ActionPlan
from tallystick.console.actions.readings import Reading, RowsReading, TransactionReading
from tallystick.console.actions.request import ActionRequest, ResolveRow, ResolveRows
from tallystick.console.actions.results import ActionResult, report_done, report_refusal, report_unknown
from tallystick.console.collect.feed import StateFeed

IDS = ("shop-1", "shop-2", "shop-3")
URL = f"/actions/resolve-rows/{quote(STORE, safe='')}?" + "&".join(f"id={name}" for name in IDS)
READY = ("shop-1", "shop-2")


def read(name: str, state: str = "Ongoing") -> TransactionReading:
    """Return what is true of one id: `shop-1` is committed in the database, `shop-2` is not."""
    number = int(name[-1])
    writer = pair(number, 3)
    row = make_row(name, writer if number == 1 else pair(number, 1), settled=number != 1)
    snapshot = make_snapshot(describe(name, state, writer), stores=[make_store(row)])
    return TransactionReading(snapshot=snapshot, transactional_id=name)


@dataclass
class Rows(MemoryReadings):
    """What is true of each id. `moves` names ids whose transaction ends at a number of readings."""

    reading: TransactionReading = field(default_factory=lambda: read("shop-1"))
    moves: dict[str, int] = field(default_factory=dict)

    async def read(self, request: ActionRequest) -> Reading:
        self.count += 1
        match request:
            case ResolveRows():
                return RowsReading(readings=tuple(map(self.find, request.transactional_ids)))
            case ResolveRow():
                return self.find(request.transactional_id)
            case _:
                raise TypeError(request)

    def find(self, name: str) -> TransactionReading:
        is_over = name == "shop-3" or self.count >= self.moves.get(name, 1_000)
        return read(name, "CompleteAbort" if is_over else "Ongoing")


async def send(visit: Visit, form: Form, typed: str = "2") -> Any:
    answer = await visit.send(form, typed, to=f"{form.action}&format=json")
    return json.loads(answer.text)["result"]


def read_audit(path: Path) -> list[tuple[str, str, str]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["subject"], line["event"], line["outcome"]) for line in lines]


def test_several_ids_have_one_page_one_confirmation_and_an_audit_line_each(tmp_path: Path) -> None:
    """Wanted: "select many, one dry run"."""

    async def story(visit: Visit) -> None:
        form = await visit.open(URL)
        assert f"Resolve 2 transactions of {STORE}" in form.text
        assert "It is committed: readers" in form.text
        assert "It is aborted: what it wrote" in form.text
        assert "shop-3 is left alone: There is nothing to finish" in form.text
        assert (await visit.send(form, "3")).status_code == 409
        result = await send(visit, form)
        assert (result["outcome"], result["text"]) == ("done", "2 of 2 are done.")
        again = await send(visit, form)
        assert "used before, and nothing was done again: done: 2 of 2 are done." in again["text"]

    audit = tmp_path / "audit.jsonl"
    actions = Site(readings=Rows(), audit_log=audit).visit(story)
    assert actions == [ResolveRow(transactional_id=name, store=STORE) for name in READY]
    assert read_audit(audit) == [
        line for name in READY for line in ((name, "intent", ""), (name, "result", "done"))
    ]
    commands = [json.loads(line)["command"] for line in audit.read_text().splitlines()]
    assert [command.rpartition(" ")[2] for command in commands[::2]] == list(READY)


def test_nothing_is_done_when_any_of_them_has_changed(tmp_path: Path) -> None:
    """[ACT-1]"""

    async def story(visit: Visit) -> None:
        result = await send(visit, await visit.open(URL))
        assert result["outcome"] == "refused"
        assert "shop-2 would be left alone now" in result["changes"]

    audit = tmp_path / "audit.jsonl"
    assert Site(readings=Rows(moves={"shop-2": 2}), audit_log=audit).visit(story) == []
    assert read_audit(audit) == [(name, "refused", "refused") for name in READY]


def test_one_that_changes_while_the_others_are_resolved_is_left_alone(tmp_path: Path) -> None:
    """[ACT-1] Each is compared once more before it is its turn."""

    async def story(visit: Visit) -> None:
        result = await send(visit, await visit.open(URL))
        assert (result["outcome"], result["text"]) == ("refused", "1 of 2 are done.")
        assert result["changes"][0] == "shop-1: done: committed it in Kafka"
        assert result["changes"][1].startswith("shop-2: refused: The state has moved")

    audit = tmp_path / "audit.jsonl"
    site = Site(readings=Rows(moves={"shop-2": 3}), audit_log=audit)
    assert [action.transactional_id for action in site.visit(story)] == ["shop-1"]  # type: ignore[union-attr]
    assert read_audit(audit)[2:] == [("shop-2", "refused", "refused")]


def test_nothing_is_tried_after_an_unknown_outcome() -> None:
    """[ACT-3]"""

    async def story(visit: Visit) -> None:
        result = await send(visit, await visit.open(URL))
        assert result["outcome"] == "outcome unknown"
        assert result["text"] == "0 of 2 are done. Not tried after that: 1."
        assert "--transactional-id shop-1" in result["look_ups"][0]["command"]

    site = Site(readings=Rows(), act=lambda plan: report_unknown("the connection was lost", plan))
    assert len(site.visit(story)) == 1


def test_one_that_is_refused_keeps_no_other_from_being_resolved() -> None:
    def act(plan: ActionPlan) -> ActionResult:
        return report_refusal("its row is corrupt") if plan.subject == "shop-1" else report_done("aborted")

    async def story(visit: Visit) -> None:
        result = await send(visit, await visit.open(URL))
        assert (result["outcome"], result["text"]) == ("refused", "1 of 2 are done.")
        assert result["changes"] == ["shop-1: refused: its row is corrupt", "shop-2: done: aborted"]

    assert len(Site(readings=Rows(), act=act).visit(story)) == 2


def test_a_selection_of_what_needs_nothing_cannot_be_sent() -> None:
    async def story(visit: Visit) -> None:
        form = await visit.open(URL.partition("id=")[0] + "id=shop-3")
        assert form.action == ""
        assert "None of them can be resolved." in form.text
        assert (await visit.client.get(URL.partition("?")[0])).status_code == 400

    assert Site(readings=Rows()).visit(story) == []


HOSTILE = "<b>\u202e&id=x\n%2e"


def test_rows_that_a_store_resolves_can_be_selected() -> None:
    """What needs nobody cannot be, and the page does not change under the selection."""
    late = [describe(name, writer=pair(n, 3), age_ms=2_000_000) for n, name in enumerate(("shop-1", HOSTILE))]
    rows = [make_row(each.transactional_id, each.writer) for each in late]
    snapshot = make_snapshot(*late, describe("fine"), stores=[make_store(*rows, make_row("fine"))])
    feed = StateFeed()
    for each in (snapshot, read_again(snapshot)):
        feed.publish(each)
    store = quote(STORE, safe="")

    async def story(visit: Visit) -> None:
        html = (await visit.client.get(f"/transactions?store={store}&select=yes")).text
        assert f'action="/actions/resolve-rows/{store}"' in html
        assert html.count('type="checkbox"') == 2
        assert f'name="id" value="{quote(HOSTILE, safe="")}"' in html
        assert "hx-get" not in html
        assert "hx-sse:connect" not in html
        plain = (await visit.client.get(f"/transactions?store={store}")).text
        assert "checkbox" not in plain
        assert "hx-get" in plain
        stores = (await visit.client.get("/stores")).text
        assert f'href="/transactions?store={store}&amp;select=yes"' in stores

    Site(feed=feed).visit(story)
