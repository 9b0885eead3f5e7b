"""The third result of an action: it was sent, and no answer came. What to look at tells what became of it."""

import asyncio
import json
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.console_operator import Form, Operator, operate, read_form
from tests.support.cutting_proxy import CuttingProxy
from tests.support.dual_write_lives import Lives, Strike
from tests.support.dual_write_stores import Place, create
from tests.support.hanging import hang
from tools.servers.broker_process import find_free_port

from tallystick import Consumer, Producer
from tallystick import TopicPartition as PublicTopicPartition
from tallystick.admin.client import Admin
from tallystick.admin.topics import NewTopic
from tallystick.cli.main import main
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.apis import ApiKey
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

LIMIT_MS = 6_000
NAME = "orders"
GROUP = "readers"

Json = dict[str, Any]


class Site:
    """A broker whose second listener is behind a proxy: the console acts through that one."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        port = find_free_port()
        self.proxy = stack.enter_context(CuttingProxy(port))
        self.broker = stack.enter_context(
            EmbeddedBroker(
                config={
                    "flush.policy": "os",
                    "transaction.partition.verification.enable": "false",
                    "listeners": f"PLAINTEXT://127.0.0.1:0,FAR://127.0.0.1:{port}",
                    "advertised.listeners": f"FAR://127.0.0.1:{self.proxy.port}",
                    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT",
                }
            )
        )
        self.place = Place("sqlite", f"sqlite:///{folder / 'paid.db'}")
        self.audit = folder / "audit.jsonl"
        create(self.place)
        with Admin(self.cluster) as admin:
            admin.create_topics([NewTopic(name=NAME, partitions=1)])

    @property
    def cluster(self) -> Json:
        return {"bootstrap.servers": self.broker.bootstrap_servers}

    @property
    def far(self) -> Json:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.proxy.port}",
            "default.api.timeout.ms": LIMIT_MS,
            "request.timeout.ms": LIMIT_MS,
            "max.block.ms": LIMIT_MS,
        }

    def prepare(self) -> Producer:
        producer = Producer({**self.cluster, "transactional.id": NAME, "enable.idempotence": True})
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(NAME, b"v")
        producer.flush()
        return producer

    def go_away_after(self, api: ApiKey) -> None:
        """Let the broker answer the next such request, lose the answer, and refuse every connection since."""

        def is_wanted(data: bytes) -> bool:
            is_probe = b"\x7f\xff\xff\xff" in data  # the marker that no broker can write
            return int.from_bytes(data[4:6], "big") == api and not is_probe

        def cut(data: bytes, is_answer: bool) -> None:
            if is_answer and self.proxy.cuts:
                self.proxy.cut()

        self.proxy.lose_answer(is_wanted)
        self.proxy.watch = cut

    def die_at(self, api: ApiKey) -> None:
        """Kill the broker when such a request has been sent to it, before it can read it."""

        def kill(data: bytes, is_answer: bool) -> None:
            if not is_answer and int.from_bytes(data[4:6], "big") == api and self.broker.running:
                self.broker.kill()

        self.proxy.watch = kill

    def play(self, story: Callable[[Operator], Awaitable[None]]) -> None:
        async def run() -> None:
            async with operate(
                self.cluster, [self.place.where], audit_log=self.audit, acting_settings=self.far
            ) as operator:
                await story(operator)

        asyncio.run(run())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


def run_command(command: str, capsys: pytest.CaptureFixture[str], servers: str) -> list[Json]:
    """Run a command as the page shows it, at the broker's own address; return its rows."""
    _, *words = shlex.split(command)
    words[words.index("--bootstrap-server") + 1] = servers
    capsys.readouterr()
    assert main([*words, "--output", "json"]) == 0
    rows: list[Json] = json.loads(capsys.readouterr().out)
    return rows


async def open_form(operator: Operator, url: str) -> tuple[Form, Json]:
    """Return the form of a dry run, and its plan."""
    answer = await operator.get(url)
    separator = "&" if "?" in url else "?"
    plan = json.loads((await operator.get(f"{url}{separator}format=json")).text)["plan"]
    return read_form(answer.text), plan


def expect_unknown(answer: httpx.Response, plan: Json) -> None:
    page = read_form(answer.text)
    assert answer.status_code == 504, page.text
    assert "outcome unknown" in page.text
    assert "does not send it again" in page.text
    assert plan["look_ups"]
    for each in plan["look_ups"]:
        assert each["command"] in page.text
        assert each["meaning"] in page.text


def wait_for_member(site: Site, member: Consumer) -> None:
    def is_member() -> bool:
        member.poll(0.1)
        return bool(admin.describe_groups([GROUP]).one(GROUP).members)

    with Admin(site.cluster) as admin:
        eventually(is_member, deadline_s=60)


def expect_audit(site: Site) -> None:
    """[ACT-5] The intent was written before, and the outcome is said to be unknown."""
    intent, result = (json.loads(line) for line in site.audit.read_text().splitlines())
    assert (intent["event"], result["event"]) == ("intent", "result")
    assert result["outcome"] == "outcome unknown"


@pytest.mark.gate(0)
def test_a_termination_whose_answer_is_lost(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    producer = site.prepare()

    async def story(operator: Operator) -> None:
        form, plan = await open_form(operator, f"/actions/force-terminate/{NAME}")
        site.go_away_after(ApiKey.INIT_PRODUCER_ID)
        expect_unknown(await operator.send(form, NAME), plan)
        again = await operator.send(form, NAME)
        assert again.status_code == 409  # the form is used; nothing is sent a second time
        (look_up,) = plan["look_ups"]
        (row,) = await asyncio.to_thread(
            run_command, look_up["command"], capsys, site.broker.bootstrap_servers
        )
        assert row["TransactionState"] == "CompleteAbort"
        assert "CompleteAbort or PrepareAbort: it was done" in look_up["meaning"]
        await operator.see_green(NAME)

    site.play(story)
    expect_audit(site)
    producer.close()


@pytest.mark.gate(0)
def test_a_termination_of_a_broker_that_dies(site: Site) -> None:
    """The request was sent, and no broker has ever read it: that cannot be told from outside."""
    producer = site.prepare()

    async def story(operator: Operator) -> None:
        form, plan = await open_form(operator, f"/actions/force-terminate/{NAME}")
        site.die_at(ApiKey.INIT_PRODUCER_ID)
        expect_unknown(await operator.send(form, NAME), plan)
        assert not site.broker.running

    site.play(story)
    expect_audit(site)
    site.broker.start()
    with Admin(site.cluster) as admin:
        assert admin.describe_transactions([NAME]).one(NAME).state == "Ongoing"
        admin.force_terminate_transaction(NAME)
    producer.close()


@pytest.mark.gate(0)
def test_a_resolution_whose_answer_is_lost(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with Lives() as lives:
        config = {**site.cluster, "transactional.id": NAME, "topic": NAME}
        lives.live(site.place, config, pay=1, strike=Strike("commit database", after=True))

    async def story(operator: Operator) -> None:
        row = await operator.see_health(NAME, "recover")
        form, plan = await open_form(operator, f"/actions/resolve/{NAME}?store={row['store']}")
        site.go_away_after(ApiKey.END_TXN)
        expect_unknown(await operator.send(form, NAME), plan)
        (look_up,) = plan["look_ups"]
        (shown,) = await asyncio.to_thread(
            run_command, look_up["command"], capsys, site.broker.bootstrap_servers
        )
        assert shown["TransactionState"] == "CompleteCommit"
        assert "CompleteCommit or PrepareCommit: it was done" in look_up["meaning"]
        await operator.see_green(NAME)

    site.play(story)
    expect_audit(site)


@pytest.mark.gate(0)
def test_a_marker_whose_answer_is_lost(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    offset = hang(site.broker.bootstrap_servers, TopicPartition(NAME, 0), 970_000)

    async def story(operator: Operator) -> None:
        form, plan = await open_form(operator, f"/actions/abort/{NAME}-0?start-offset={offset}")
        site.go_away_after(ApiKey.WRITE_TXN_MARKERS)
        expect_unknown(await operator.send(form, f"{NAME}-0"), plan)
        (look_up,) = plan["look_ups"]
        rows = await asyncio.to_thread(run_command, look_up["command"], capsys, site.broker.bootstrap_servers)
        assert [row["CurrentTransactionStartOffset"] for row in rows] == [None]

    site.play(story)
    expect_audit(site)


@pytest.mark.gate(0)
def test_a_reset_whose_answer_is_lost(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    at = PublicTopicPartition(NAME, 0)
    with Producer(site.cluster) as producer:
        producer.send(NAME, b"v")
    with Consumer({**site.cluster, "group.id": GROUP}) as consumer:
        consumer.assign([at])
        consumer.commit({at: 0})

    async def story(operator: Operator) -> None:
        form, plan = await open_form(operator, f"/actions/reset-offsets/{GROUP}?to=to-latest")
        site.go_away_after(ApiKey.OFFSET_COMMIT)
        expect_unknown(await operator.send(form, GROUP), plan)
        (look_up,) = plan["look_ups"]
        (row,) = await asyncio.to_thread(
            run_command, look_up["command"], capsys, site.broker.bootstrap_servers
        )
        assert row["CurrentOffset"] == 1

    site.play(story)
    expect_audit(site)


@pytest.mark.gate(0)
def test_a_cluster_that_is_away_before_anything_is_sent(site: Site) -> None:
    """Refused, because what is true now cannot be read: nothing was sent, and no intent was written."""
    producer = site.prepare()

    async def story(operator: Operator) -> None:
        form, _ = await open_form(operator, f"/actions/force-terminate/{NAME}")
        site.proxy.cut()
        refused = await operator.send(form, NAME)
        assert refused.status_code == 409
        assert "could not be read, so nothing was done" in read_form(refused.text).text

    site.play(story)
    (line,) = site.audit.read_text().splitlines()
    assert json.loads(line)["event"] == "refused"
    producer.close()


def test_a_group_that_gets_a_member_meanwhile_is_not_moved(site: Site) -> None:
    """A group gets a member between the dry run and the action."""
    at = PublicTopicPartition(NAME, 0)
    with Consumer({**site.cluster, "group.id": GROUP}) as consumer:
        consumer.assign([at])
        consumer.commit({at: 1})

    async def story(operator: Operator) -> None:
        form, _ = await open_form(operator, f"/actions/reset-offsets/{GROUP}?to=to-earliest")
        with Consumer({**site.cluster, "group.id": GROUP}) as member:
            member.subscribe([NAME])
            await asyncio.to_thread(wait_for_member, site, member)
            refused = await operator.send(form, GROUP)
        assert refused.status_code == 409
        text = read_form(refused.text).text
        assert "The state has moved" in text
        assert "1 member reads it" in text

    site.play(story)
