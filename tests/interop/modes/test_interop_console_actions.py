"""Actions from the console's pages on an Apache Kafka without two-phase commit."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.console_operator import Operator, operate, read_form
from tests.support.hanging import hang
from tools.servers import apache_kafka

from tallystick import Consumer, Producer, TopicPartition
from tallystick.admin.client import Admin
from tallystick.admin.topics import NewTopic

pytestmark = [pytest.mark.gate(0), pytest.mark.kafka, pytest.mark.server]

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.partition.verification.enable": "false",
}
RESUME = {"transaction.two.phase.commit.enable": False, "tallystick.modes": "resume"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    directory: Path = tmp_path_factory.mktemp("kafka")
    with apache_kafka.ApacheKafka(directory=directory, settings=SETTINGS) as running:
        yield {"bootstrap.servers": running.bootstrap}


def play(servers: dict[str, Any], story: Callable[[Operator], Awaitable[None]], **acting: object) -> None:
    async def run() -> None:
        async with operate(servers, acting_settings={**servers, **acting}) as operator:
            await story(operator)

    asyncio.run(run())


def make_topic(servers: dict[str, Any], name: str) -> None:
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name=name, partitions=1)]).all()


async def confirm(operator: Operator, url: str, typed: str) -> str:
    """Open a dry run, confirm it, and return what the dry run said."""
    form = read_form((await operator.get(url)).text)
    if "reason" in form.fields:
        answer = await operator.send(form, typed, reason="its row says so")
    else:
        answer = await operator.send(form, typed)
    assert answer.status_code == 200, read_form(answer.text).text
    return form.text


def test_a_prepared_transaction_is_completed_in_mode_resume(servers: dict[str, Any]) -> None:
    """The modes of the writers are settings of the console's client, as for the command."""
    make_topic(servers, "resumed")
    producer = Producer({**servers, **RESUME, "transactional.id": "resumed"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("resumed", b"v")
    state = str(producer.prepare_transaction())

    async def story(operator: Operator) -> None:
        url = f"/actions/complete/resumed?state={state}"
        text = await confirm(operator, url, "resumed")
        assert "It is committed" in text
        await operator.see_green("resumed")

    play(servers, story, **RESUME)
    with Admin(servers) as admin:
        assert admin.describe_transactions(["resumed"]).one("resumed").state == "CompleteCommit"
    producer.close()


def test_without_its_mode_it_is_refused_and_stays_as_it_is(servers: dict[str, Any]) -> None:
    make_topic(servers, "kept")
    producer = Producer({**servers, **RESUME, "transactional.id": "kept"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("kept", b"v")
    state = str(producer.prepare_transaction())

    async def story(operator: Operator) -> None:
        form = read_form((await operator.get(f"/actions/complete/kept?state={state}")).text)
        answer = await operator.send(form, "kept", reason="its row says so")
        assert answer.status_code == 409
        assert "unstable.api.versions.enable" in read_form(answer.text).text

    play(servers, story)
    with Admin(servers) as admin:
        assert admin.describe_transactions(["kept"]).one("kept").state == "Ongoing"

    async def end(operator: Operator) -> None:
        await confirm(operator, "/actions/force-terminate/kept", "kept")
        await operator.see_green("kept")

    play(servers, end)
    producer.close()


def test_a_hanging_transaction_is_aborted_and_the_missing_check_is_said(servers: dict[str, Any]) -> None:
    """[ADM-3] Kafka's leader does not compare the start offset."""
    make_topic(servers, "hanging")
    offset = hang(servers["bootstrap.servers"], TopicPartition("hanging", 0), 960_000)

    async def story(operator: Operator) -> None:
        await operator.see_health("producer:960000:0", "hanging")
        url = f"/actions/abort/hanging-0?start-offset={offset}"
        text = await confirm(operator, url, "hanging-0")
        assert "does not check the start offset" in text
        await operator.see_green("producer:960000:0")

    play(servers, story)


def test_offsets_of_a_group_are_moved(servers: dict[str, Any]) -> None:
    make_topic(servers, "moved")
    with Producer(servers) as producer:
        producer.send("moved", b"v")
    at = TopicPartition("moved", 0)
    with Consumer({**servers, "group.id": "movers"}) as consumer:
        consumer.assign([at])
        consumer.commit({at: 0})

    async def story(operator: Operator) -> None:
        text = await confirm(operator, "/actions/reset-offsets/movers?to=to-latest", "movers")
        assert "1 offset is passed over" in text

    play(servers, story)
    with Admin(servers) as admin:
        assert [each.offset for each in admin.list_group_offsets("movers").values()] == [1]
