"""An operator's resolve beside writers that are well: they go on, and only what is left open is finished."""

import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.support.dual_world import Crash, Crashed, MakeWorld, World

from tallystick.cli.commands import resolve as command
from tallystick.cli.main import main
from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.dualwrite.resolve import HAS_CHANGED
from tallystick.testing import eventually

pytestmark = pytest.mark.server

MODES = [{}, {"tallystick.modes": "keep"}, {"tallystick.modes": "resume"}]


@pytest.fixture(params=MODES, ids=["2pc", "keep", "resume"])
def world(request: pytest.FixtureRequest, sqlite_world: MakeWorld) -> World:
    return sqlite_world(**request.param)


def pay_until(world: World, name: str, end: threading.Event, paid: list[str], failed: list[object]) -> None:
    config = {**world.config, "transactional.id": name}
    try:
        with DualWriter(SqlStore(world.make_engine()), config) as writer:
            writer.recover()
            while not end.wait(0.02):
                what = f"{name} {len(paid)}"
                with writer.transaction() as txn:
                    txn.send(world.topic, what.encode())
                    txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (2, '{what}')"))
                paid.append(what)
    except Exception as exc:
        failed.append(exc)


def decide(world: World, name: str, at: str) -> None:
    world.settings["transactional.id"] = name
    writer = world.life(Crash(at=at))
    with suppress(Crashed):
        writer.recover()
        world.pay(writer, 1, name)
    world.cut()
    del world.settings["transactional.id"]


def resolve(world: World, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, str]]:
    store = ("--store", world.engine.url.render_as_string(hide_password=False))
    servers = ("--bootstrap-server", world.broker.bootstrap_servers, "--output", "json")
    capsys.readouterr()
    code = main(["transactions", "resolve", *words, *store, *servers])
    rows = json.loads(capsys.readouterr().out)
    return code, {row["TransactionalId"].removeprefix(f"{world.topic}-"): row["Result"] for row in rows}


@pytest.mark.gate(1)
def test_only_what_is_left_open_is_finished(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """[DW-6] In each mode, found from what is there. Nothing is claimed before it is known what to do."""
    names = [f"{world.topic}-{each}" for each in ("decided", "lost", "live-1", "live-2")]
    decide(world, names[0], "commit database")
    decide(world, names[1], "prepare")
    end = threading.Event()
    failed: list[object] = []
    paid: dict[str, list[str]] = {each: [] for each in names[2:]}
    writers = [
        threading.Thread(target=pay_until, args=(world, each, end, paid[each], failed)) for each in paid
    ]
    for thread in writers:
        thread.start()
    try:
        eventually(lambda: all(paid.values()))
        code, results = resolve(world, capsys, "--yes")
        counts = {each: len(what) for each, what in paid.items()}
        eventually(lambda: failed or all(len(paid[each]) > counts[each] for each in paid))
    finally:
        end.set()
        for thread in writers:
            thread.join()
    assert not failed
    assert code == 0
    assert results["decided"] == "committed it in Kafka"
    assert results["lost"] == "aborted it in Kafka"
    assert all(results[each].startswith("left alone") for each in ("live-1", "live-2"))
    assert sorted(world.rows()) == sorted([names[0], *(what for each in paid.values() for what in each)])


@pytest.mark.gate(0)
def test_what_has_changed_since_it_was_shown_is_left_alone(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was confirmed is done, or nothing."""
    decide(world, world.topic, "commit database")

    def recover_meanwhile(_question: str, *, yes: bool) -> None:
        with world.life() as writer:
            writer.recover()
        decide(world, world.topic, "commit database")

    monkeypatch.setattr(command, "confirm", recover_meanwhile)
    before = world.store.read_state(world.topic)
    code, results = resolve(world, capsys, "--yes")
    assert (code, list(results.values())) == (
        0,
        [f"left alone: {HAS_CHANGED}"],
    )
    after = world.store.read_state(world.topic)
    assert before is not None
    assert after is not None
    assert after.state != before.state
    with world.life() as writer:
        (line,) = writer.inspect().ids
        assert line.verdict is not None
        assert line.verdict.name == "COMMIT"


@pytest.mark.gate(0)
def test_the_question_says_what_becomes_of_each(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []
    monkeypatch.setattr(command, "confirm", lambda question, *, yes: questions.append(question))
    names = [f"{world.topic}-{each}" for each in ("a", "b", "c")]
    decide(world, names[0], "commit database")
    decide(world, names[1], "prepare")
    decide(world, names[2], "complete")
    resolve(world, capsys, "--yes")
    assert questions == [f"Commit 1 ({names[0]}), abort 1 ({names[1]}), leave 1 alone?"]
    code, results = resolve(world, capsys, "--yes")
    assert (code, set(results.values()), len(questions)) == (0, {"left alone: nothing to do"}, 1)


def test_a_database_that_is_not_there_is_not_made(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["--dry-run"], ["--yes"]):
        servers = ["--bootstrap-server", world.broker.bootstrap_servers]
        assert main(["transactions", "resolve", "--store", "sqlite:///nope.db", *words, *servers]) != 0
        assert f"{tmp_path / 'nope.db'} is not a file on this host" in capsys.readouterr().err
    assert not (tmp_path / "nope.db").exists()
