"""The drill with the page's own buttons: a fault is shown, dry-run, confirmed by its id, and all is green."""

import asyncio
import itertools
import json
import shutil
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.console_operator import Form, Operator, operate, read_form
from tests.support.dual_write_lives import Lives, Strike
from tests.support.dual_write_stores import Place, create, leave, opened
from tests.support.hanging import hang
from tests.support.spark_queries import Query

from tallystick import Consumer, Producer
from tallystick import TopicPartition as PublicTopicPartition
from tallystick.admin.client import Admin
from tallystick.admin.topics import NewTopic
from tallystick.console.actions.execution import carry_out
from tallystick.console.actions.results import ActionResult
from tallystick.dualwrite import DualWriter
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import EmbeddedBroker

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.broker(
        in_process=False, config={"flush.policy": "os", "transaction.partition.verification.enable": "false"}
    ),
]

_serial = itertools.count(1)

Json = dict[str, Any]


class Scene:
    """A topic, an SQLite store, and writers of one transactional id."""

    def __init__(
        self, broker: EmbeddedBroker, lives: Lives, folder: Path, place: Place | None = None
    ) -> None:
        self.servers, self.lives, self.folder = broker.bootstrap_servers, lives, folder
        self.name = f"act-{next(_serial)}"
        self.place = place or Place("sqlite", f"sqlite:///{folder / 'paid.db'}")
        self.audit = folder / "audit.jsonl"
        create(self.place)
        with Admin(self.cluster) as admin:
            admin.create_topics([NewTopic(name=self.name, partitions=1)])

    @property
    def cluster(self) -> Json:
        return {"bootstrap.servers": self.servers}

    @property
    def config(self) -> Json:
        return {**self.cluster, "transactional.id": self.name}

    @property
    def store_url(self) -> str:
        """The URL that a console is given."""
        if self.place.kind in ("rocksdb", "zookeeper"):
            return f"{self.place.kind}://{self.place.where}"
        return self.place.url.render_as_string(hide_password=False)

    def live(self, strike: Strike | None = None) -> None:
        """Run a writer's process; it is killed at `strike`."""
        self.lives.live(self.place, {**self.config, "topic": self.name}, pay=next(_serial), strike=strike)

    def prepare(self, **settings: object) -> tuple[Producer, str]:
        """Prepare a transaction that no database knows; return its producer and its state."""
        producer = Producer({**self.config, "transaction.two.phase.commit.enable": True, **settings})
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(self.name, b"v")
        return producer, str(producer.prepare_transaction())

    def play(
        self,
        story: Callable[[Operator], Awaitable[None]],
        *,
        with_store: bool = True,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a story at a console of its own.

        Args:
            meanwhile: happens after the last look before an action.
        """

        def act(*args: Any) -> ActionResult:
            meanwhile()
            return carry_out(*args)

        async def run() -> None:
            stores = [self.store_url] if with_store else []
            async with operate(self.cluster, stores, audit_log=self.audit, act=act) as operator:
                await story(operator)

        asyncio.run(run())

    def read_audit(self) -> list[Json]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]

    def count_committed(self) -> int:
        """Return how many records a reader of committed records gets."""
        settings = {**self.cluster, "isolation.level": "read_committed"}
        at = PublicTopicPartition(self.name, 0)
        with Consumer(settings) as consumer, Admin(self.cluster) as admin:
            end = admin.list_offsets({TopicPartition(self.name, 0): -1}, read_committed=True)
            stable = end.one(TopicPartition(self.name, 0))
            consumer.assign([at])
            consumer.seek_to_beginning([at])
            count = 0
            while stable is not None and consumer.position(at) < stable.offset:
                count += len(consumer.poll(1))
        return count


@pytest.fixture
def scene(broker: EmbeddedBroker, lives: Lives, tmp_path: Path) -> Scene:
    return Scene(broker, lives, tmp_path)


def url_of(key: str) -> str:
    return f"/transactions/{quote(key, safe='')}"


def expect_done(answer: Any) -> None:
    page = read_form(answer.text)
    assert answer.status_code == 200, page.text
    assert "done" in page.text


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("strike", "outcome", "committed"),
    [
        (Strike("record", after=True), "It is aborted", 1),
        (Strike("commit database", after=True), "It is committed", 2),
    ],
    ids=["before the decision", "after the decision"],
)
def test_a_dead_writer_is_resolved_by_its_row(
    scene: Scene, strike: Strike, outcome: str, committed: int
) -> None:
    scene.live()
    scene.live(strike)

    async def story(operator: Operator) -> None:
        row = await operator.see_health(scene.name, "recover")
        form = await operator.open_dry_run(url_of(scene.name), "resolve")
        assert outcome in form.text
        assert row["command"] in form.text
        expect_done(await operator.send(form, scene.name))
        await operator.see_green(scene.name)

    scene.play(story)
    assert scene.count_committed() == committed
    intent, result = scene.read_audit()
    assert (intent["event"], result["event"], result["outcome"]) == ("intent", "result", "done")
    assert (intent["user"], intent["action"], intent["subject"]) == ("loopback", "resolve", scene.name)
    assert intent["digest"] == result["digest"]
    assert "Ongoing" in intent["state"]
    assert scene.place.where in intent["state"]


@pytest.mark.gate(0)
def test_several_dead_writers_of_a_store_are_resolved_together(scene: Scene) -> None:
    """Each as its own row says: one was decided, the other was not."""
    names = [f"{scene.name}-decided", f"{scene.name}-undecided"]
    for name, strike in zip(names, ("commit database", "record"), strict=True):
        config = {**scene.cluster, "transactional.id": name, "topic": scene.name}
        scene.lives.live(scene.place, config, pay=next(_serial), strike=None)
        scene.lives.live(scene.place, config, pay=next(_serial), strike=Strike(strike, after=True))

    async def story(operator: Operator) -> None:
        for name in names:
            await operator.see_health(name, "recover")
        store = quote(scene.place.where, safe="")
        ids = "&".join(f"id={name}" for name in names)
        form = read_form((await operator.get(f"/actions/resolve-rows/{store}?{ids}")).text)
        assert "Resolve 2 transactions of" in form.text
        expect_done(await operator.send(form, "2"))
        await operator.see_green(scene.name)

    scene.play(story)
    assert scene.count_committed() == 3
    lines = [(line["subject"], line["event"]) for line in scene.read_audit()]
    assert lines == [(name, event) for name in names for event in ("intent", "result")]


@pytest.fixture(params=["postgresql+psycopg", "mysql+pymysql", "rocksdb", "zookeeper"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    match request.param:
        case "rocksdb":
            made = Place("rocksdb", str(tmp_path / "rocks"))
        case "zookeeper":
            server = request.getfixturevalue("zookeeper")
            made = Place("zookeeper", f"{server.hosts}{server.new_root()}")
        case kind:
            server = request.getfixturevalue("mariadb" if kind.startswith("mysql") else "postgresql")
            made = Place(kind, server.url(server.new_database()))
    yield made
    leave(made)


@pytest.mark.gate(0)
def test_every_kind_of_store_is_resolved(
    broker: EmbeddedBroker, lives: Lives, tmp_path: Path, place: Place
) -> None:
    """And a password in the URL is on no page and in no audit line."""
    scene = Scene(broker, lives, tmp_path, place)
    scene.live(Strike("commit database", after=True))
    pages: list[str] = []

    async def story(operator: Operator) -> None:
        await operator.see_health(scene.name, "recover")
        form = await operator.open_dry_run(url_of(scene.name), "resolve")
        answer = await operator.send(form, scene.name)
        pages.extend((form.text, answer.text))
        expect_done(answer)
        await operator.see_green(scene.name)

    scene.play(story)
    password = scene.store_url.partition("://")[2].partition("@")[0].partition(":")[2]
    if password and "@" in scene.store_url:
        assert not any(f":{password}@" in text for text in (*pages, scene.audit.read_text()))
    assert scene.count_committed() == 1


def test_a_database_that_a_live_process_has_open_is_refused(
    broker: EmbeddedBroker, lives: Lives, tmp_path: Path
) -> None:
    """RocksDB lets one process in: its rows can be read beside it, and not be claimed."""
    scene = Scene(broker, lives, tmp_path, Place("rocksdb", str(tmp_path / "rocks")))
    scene.live(Strike("commit database", after=True))

    async def story(operator: Operator) -> None:
        await operator.see_health(scene.name, "recover")
        with opened(scene.place):
            form = await operator.open_dry_run(url_of(scene.name), "resolve")
            answer = await operator.send(form, scene.name)
        assert answer.status_code == 409
        assert "is open in a live process" in read_form(answer.text).text

    scene.play(story)
    assert [line["outcome"] for line in scene.read_audit()] == ["", "refused"]


def test_a_hanging_transaction_is_aborted_in_its_partition(scene: Scene) -> None:
    producer_id = 980_000 + next(_serial)
    offset = hang(scene.servers, TopicPartition(scene.name, 0), producer_id)
    key = f"producer:{producer_id}:0"

    async def story(operator: Operator) -> None:
        await operator.see_health(key, "hanging")
        form = await operator.open_dry_run(url_of(key), "abort")
        assert f"Open from offset {offset}" in form.text
        assert "ABORT marker" in form.text
        assert "reason" not in form.fields
        expect_done(await operator.send(form, f"{scene.name}-0"))
        await operator.see_green(key)

    scene.play(story)
    assert scene.count_committed() == 0


@pytest.mark.gate(0)
def test_an_orphan_is_completed_by_the_state_that_the_operator_has(scene: Scene) -> None:
    producer, state = scene.prepare()

    async def story(operator: Operator) -> None:
        await operator.see_health(scene.name, "orphan")
        chooser = await operator.open_dry_run(url_of(scene.name), "complete")
        assert chooser.action == ""
        form = read_form((await operator.get(f"/actions/complete/{scene.name}?state={state}")).text)
        assert "It is committed" in form.text
        expect_done(await operator.send(form, scene.name, reason="its row says so"))
        await operator.see_green(scene.name)

    scene.play(story)
    assert scene.count_committed() == 1
    producer.close()


@pytest.mark.gate(0)
def test_a_prepared_transaction_is_terminated_with_a_reason_only(scene: Scene) -> None:
    """[ACT-2] It is in doubt; the reason goes into the audit log."""
    producer, _ = scene.prepare()

    async def story(operator: Operator) -> None:
        await operator.see_health(scene.name, "orphan")
        form = await operator.open_dry_run(url_of(scene.name), "force-terminate")
        assert "in doubt" in form.text
        refused = await operator.send(form, scene.name)
        assert refused.status_code == 409
        assert "reason is needed" in read_form(refused.text).text
        expect_done(await operator.send(form, scene.name, reason="the other side is gone"))
        await operator.see_green(scene.name)

    scene.play(story)
    assert scene.count_committed() == 0
    assert [line["reason"] for line in scene.read_audit()] == ["the other side is gone"] * 2
    producer.close()


@pytest.mark.gate(0)
def test_what_the_database_has_committed_is_not_terminated_without_a_reason(scene: Scene) -> None:
    """[ACT-2] The rule holds below two-phase commit as well, where the command itself would not object."""
    scene.live()
    scene.live(Strike("commit database", after=True))

    async def story(operator: Operator) -> None:
        await operator.see_health(scene.name, "recover")
        form = read_form((await operator.get(f"/actions/force-terminate/{scene.name}")).text)
        assert f"{scene.place.where} has committed it" in form.text
        refused = await operator.send(form, scene.name)
        assert refused.status_code == 409
        await operator.see_health(scene.name, "recover")

    scene.play(story)
    assert not scene.audit.read_text()


def test_sides_that_differ_are_refused(scene: Scene) -> None:
    """The verdict offers no action; the dry run of one says why."""
    scene.live()
    scene.live(Strike("commit database", after=True))
    with Admin(scene.cluster) as admin:
        admin.force_terminate_transaction(scene.name, force=True)

    async def story(operator: Operator) -> None:
        await operator.see_health(scene.name, "broken")
        text = (await operator.get(url_of(scene.name))).text
        assert "--accept-mixed" in text
        page = read_form(text)
        assert page.links == []
        form = read_form(
            (await operator.get(f"/actions/resolve/{scene.name}?store={quote(scene.place.where)}")).text
        )
        assert form.action == ""
        assert "This is refused" in form.text
        assert "--accept-mixed" in form.text

    scene.play(story)
    with opened(scene.place) as store, DualWriter(store, scene.config) as writer:
        writer.recover(accept_mixed=True)


def test_a_database_that_lost_a_commit_is_refused(scene: Scene) -> None:
    scene.live()
    backup = scene.folder / "backup.db"
    shutil.copy(scene.folder / "paid.db", backup)
    scene.live()
    shutil.copy(backup, scene.folder / "paid.db")

    async def story(operator: Operator) -> None:
        await operator.see_health(scene.name, "broken")
        url = f"/actions/resolve/{scene.name}?store={quote(scene.place.where)}"
        form = read_form((await operator.get(url)).text)
        assert form.action == ""
        assert "lacks a commit: it lost one" in form.text

    scene.play(story)


def test_a_database_that_is_away_is_an_objection_and_no_silence(scene: Scene) -> None:
    producer, state = scene.prepare()
    (scene.folder / "paid.db").rename(scene.folder / "elsewhere.db")

    async def story(operator: Operator) -> None:
        form = read_form((await operator.get(f"/actions/complete/{scene.name}?state=")).text)
        assert "could not be read: it may have committed it" in form.text
        assert form.fields.keys() == {"token", "digest", "reason", "confirmation"}
        right = read_form((await operator.get(f"/actions/complete/{scene.name}?state={state}")).text)
        expect_done(await operator.send(right, scene.name, reason="its row says so"))

    scene.play(story)
    producer.close()


@pytest.mark.gate(0)
def test_a_database_that_hangs_keeps_nothing_else_from_being_read(scene: Scene) -> None:
    """It takes connections and never says a word: an objection, within the limit of a reading."""
    producer, _ = scene.prepare()

    async def run(url: str) -> None:
        async with operate(scene.cluster, [scene.place.where, url]) as operator:
            form = read_form((await operator.get(f"/actions/force-terminate/{scene.name}")).text)
            assert f"{url} could not be read: it may have committed it" in form.text
            assert "Ongoing" in form.text
            expect_done(await operator.send(form, scene.name, reason="it never answers"))

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(run(f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/shop"))
    producer.close()


@pytest.mark.gate(0)
def test_a_group_behind_an_open_transaction_is_freed_and_then_moved(scene: Scene) -> None:
    producer, state = scene.prepare()
    group = f"{scene.name}-readers"
    at = PublicTopicPartition(scene.name, 0)
    with Consumer({**scene.cluster, "group.id": group}) as consumer:
        consumer.assign([at])
        consumer.commit({at: 0})

    async def story(operator: Operator) -> None:
        await operator.see(
            "/groups",
            lambda page: any(row["group_id"] == group and row["held_back_count"] for row in page["groups"]),
        )
        url = f"/actions/complete/{scene.name}?state={state}"
        form = read_form((await operator.get(url)).text)
        expect_done(await operator.send(form, scene.name, reason="its row says so"))
        await operator.see(
            "/groups",
            lambda page: any(row["group_id"] == group and row["data_lag"] == 1 for row in page["groups"]),
        )
        chooser = await operator.open_dry_run(f"/groups/{group}", "reset-offsets")
        assert chooser.action == ""
        form = read_form((await operator.get(f"/actions/reset-offsets/{group}?to=to-latest")).text)
        assert f"{scene.name}-0: from 0 to 2: 2 offsets are passed over" in form.text
        expect_done(await operator.send(form, group))
        await operator.see(
            "/groups",
            lambda page: any(row["group_id"] == group and row["data_lag"] == 0 for row in page["groups"]),
        )

    scene.play(story, with_store=False)
    with Admin(scene.cluster) as admin:
        assert [each.offset for each in admin.list_group_offsets(group).values()] == [2]
    producer.close()


@pytest.mark.gate(0)
def test_a_transaction_with_a_timeout_is_terminated_without_one(scene: Scene) -> None:
    """Nothing of it can be in doubt, and no store names it: the id alone confirms."""
    producer = Producer(scene.config)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(scene.name, b"v")
    producer.flush()

    async def story(operator: Operator) -> None:
        await operator.see_health(scene.name, "slow")
        form = await operator.open_dry_run(url_of(scene.name), "force-terminate")
        assert "reason" not in form.fields
        expect_done(await operator.send(form, scene.name))
        await operator.see_green(scene.name)

    scene.play(story)
    assert scene.count_committed() == 0
    producer.close()


@pytest.fixture
def query(broker: EmbeddedBroker) -> Iterator[Query]:
    made = Query(broker.bootstrap_servers)
    made.make_topic()
    yield made
    made.close()


@pytest.mark.gate(0)
@pytest.mark.parametrize("is_decided", [True, False])
def test_what_a_dead_spark_driver_left_is_resolved_by_its_prefix(
    scene: Scene, query: Query, is_decided: bool
) -> None:
    """A driver dead behind its decision, and one dead before it."""
    query.decide_and_die()
    if not is_decided:
        query.write(query.station().begin(), 1)
    (name, *_) = query.open_ids()

    async def story(operator: Operator) -> None:
        await operator.see_health(name, "recover")
        form = await operator.open_dry_run(url_of(name), "resolve-prefix")
        assert ("Committed: 2 transactions" in form.text) is is_decided
        assert name in form.text
        expect_done(await operator.send(form, query.prefix))
        await operator.see_green(query.prefix)

    scene.play(story, with_store=False)
    assert query.open_ids() == []
    assert query.committed() == (22 if is_decided else 33)  # with the markers


def test_a_state_that_moves_meanwhile_ends_the_action(scene: Scene) -> None:
    """[ACT-1] The dry run is as old as its page; what has changed since is said, and nothing is done."""
    producer, state = scene.prepare()

    async def story(operator: Operator) -> None:
        form = read_form((await operator.get(f"/actions/complete/{scene.name}?state=")).text)
        other = read_form((await operator.get(f"/actions/complete/{scene.name}?state={state}")).text)
        expect_done(await operator.send(other, scene.name, reason="its row says so"))
        late = await operator.send(form, scene.name, reason="nothing was stored")
        assert late.status_code == 409
        text = read_form(late.text).text
        assert "Kafka, before: Ongoing" in text
        assert "Kafka, now: CompleteCommit" in text

    scene.play(story)
    assert scene.count_committed() == 1
    assert [line["event"] for line in scene.read_audit()] == ["intent", "result", "refused"]
    producer.close()


def test_two_forms_of_one_dry_run_are_used_once_each_and_act_once(scene: Scene) -> None:
    """[ACT-4] Two operators, or two presses of a button, at the same moment."""
    producer, _ = scene.prepare()

    async def story(operator: Operator) -> None:
        url = f"/actions/force-terminate/{scene.name}"
        forms: list[Form] = [read_form((await operator.get(url)).text) for _ in range(2)]
        answers = await asyncio.gather(
            *(operator.send(form, scene.name, reason="test") for form in (*forms, forms[0]))
        )
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409]

    scene.play(story)
    assert [line["event"] for line in scene.read_audit()].count("intent") == 1
    producer.close()


@pytest.mark.gate(0)
@pytest.mark.parametrize("kind", ["resolve", "force-terminate"])
def test_a_writer_that_takes_over_after_the_last_look_keeps_its_transaction(scene: Scene, kind: str) -> None:
    """[ACT-1] What is done, too, is compared with what was shown: the id alone names no transaction."""
    scene.live(Strike("record", after=True))

    async def story(operator: Operator) -> None:
        await operator.see_health(scene.name, "recover")
        form = await operator.open_dry_run(url_of(scene.name), kind)
        refused = await operator.send(form, scene.name, reason="its host is lost")
        assert refused.status_code == 409
        assert "its writer is alive" in read_form(refused.text).text

    scene.play(story, meanwhile=lambda: scene.live(Strike("commit database", after=True)))
    with opened(scene.place) as store, DualWriter(store, scene.config) as writer:
        (line,) = writer.inspect().ids
        assert line.finding.name == "DECIDED"
    assert [line.get("outcome") for line in scene.read_audit()] == ["", "refused"]
