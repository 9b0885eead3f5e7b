"""A broken transaction has a command: `resolve --accept-mixed` says what is lost, and asks for the id."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.support.dual_world import Crash, Crashed, MakeWorld, World
from tests.support.raw_producer import committed_values

from tallystick.admin import Admin
from tallystick.cli.commands import accept_mixed as command
from tallystick.cli.main import main
from tallystick.dualwrite import DatabaseBehind, HeuristicMixed

pytestmark = pytest.mark.server

Resolve = Callable[..., tuple[int, str, str]]


@pytest.fixture
def world(sqlite_world: MakeWorld) -> World:
    return sqlite_world()


@pytest.fixture
def resolve(world: World, capsys: pytest.CaptureFixture[str]) -> Resolve:
    def run(*words: str, name: str = world.topic) -> tuple[int, str, str]:
        store = ("--store", world.engine.url.render_as_string(hide_password=False))
        servers = ("--bootstrap-server", world.broker.bootstrap_servers)
        capsys.readouterr()
        code = main(["transactions", "resolve", "--transactional-id", name, *store, *servers, *words])
        return code, *capsys.readouterr()

    return run


def pay(world: World, what: str, crash_at: str = "") -> None:
    writer = world.life(Crash(at=crash_at) if crash_at else None)
    with suppress(Crashed):
        writer.recover()
        world.pay(writer, 2, what)
    world.cut()


def tear(world: World) -> None:
    """Leave a row whose records the cluster has aborted."""
    pay(world, "whole")
    pay(world, "torn", "commit database")
    with Admin({"bootstrap.servers": world.broker.bootstrap_servers}) as admin:
        admin.force_terminate_transaction(world.topic, force=True)


def lose_rows(world: World) -> None:
    """Leave a committed record whose row the database has lost."""
    pay(world, "whole")
    row = world.store.read_state(world.topic)
    assert row is not None
    pay(world, "lost")
    with world.engine.begin() as connection:
        connection.execute(text(f"DELETE FROM {world.table} WHERE what = 'lost'"))
        connection.execute(
            text("UPDATE kafka_transaction_state SET prepared_transaction_state = :state"),
            {"state": str(row.state)},
        )


@pytest.mark.gate(1)
def test_what_is_lost_is_shown_and_then_accepted(world: World, resolve: Resolve, tmp_path: Path) -> None:
    """ "prints what is lost, partition, offsets, row; asks for the id": without a terminal, as an option."""
    tear(world)
    with pytest.raises(HeuristicMixed), world.life() as writer:
        writer.recover()
    code, out, err = resolve("--accept-mixed", "--dry-run", "--output", "json")
    rows = json.loads(out)
    assert code == 3
    database, kafka = rows
    assert (database["Half"], database["Outcome"][:18]) == ("database", "committed, begun 2")
    assert kafka == {
        "TransactionalId": world.topic,
        "Half": "Kafka",
        "Transaction": database["Transaction"],
        "Outcome": "aborted",
        "Partition": f"{world.topic}-0",
        "Offsets": "2-2",
        "Records": 1,
    }
    assert "Lost: the records" in err
    assert "Accepting repairs nothing: send those records again, or take the rows back first." in err
    audit = tmp_path / "audit.log"
    code, out, err = resolve("--accept-torn", "--confirm", world.topic, "--audit-log", str(audit))
    assert (code, "aborted" in out) == (0, True)
    assert f"{world.topic}: accepted; its writers can go on." in err
    assert f"accept-mixed '{world.topic}' FORCED, database {database['Transaction']}" in err
    assert audit.read_text().splitlines()[-1].endswith(f"accept-mixed '{world.topic}' FORCED: accepted")
    assert err.count("Send its records again") == 0, "the log says what was shown"
    pay(world, "next")
    assert committed_values(world.broker, world.topic, 0) == ["whole", "next"]
    assert resolve("--accept-mixed", "--confirm", world.topic)[0] == 6


@pytest.mark.gate(0)
def test_rows_that_are_lost_are_named_by_their_records(world: World, resolve: Resolve) -> None:
    lose_rows(world)
    with pytest.raises(DatabaseBehind), world.life() as writer:
        writer.recover()
    code, out, err = resolve("--accept-mixed", "--dry-run", "--output", "json")
    _, kafka = json.loads(out)
    assert (code, kafka["Outcome"], kafka["Offsets"]) == (3, "committed", "2-2")
    assert "Lost: the rows" in err
    assert resolve("--accept-mixed", "--confirm", world.topic)[0] == 0
    pay(world, "next")


def test_without_the_id_nothing_is_done(
    world: World, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "asks for the id": a wrong one, an empty one, `--yes`, and no terminal are no confirmation."""
    tear(world)
    before = world.store.read_state(world.topic)
    code, _, err = resolve("--accept-mixed")
    assert (code, "--confirm ID" in err) == (5, True)
    assert resolve("--accept-mixed", "--yes")[0] == 2
    assert resolve("--accept-mixed", "--confirm", "other")[0] == 2
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer in ("", "y", world.topic + "-1"):
        monkeypatch.setattr("typer.prompt", lambda *_, answer=answer, **__: answer)
        code, _, err = resolve("--accept-mixed")
        assert (code, "not confirmed; nothing was done" in err) == (5, True)
    assert world.store.read_state(world.topic) == before
    monkeypatch.setattr("typer.prompt", lambda *_, **__: world.topic)
    assert resolve("--accept-mixed")[0] == 0


def test_what_another_database_may_have_decided_is_shown_as_open(
    world: World, resolve: Resolve, sqlite_world: MakeWorld
) -> None:
    pay(world, "decided elsewhere", "commit database")
    other = sqlite_world()
    other.settings["transactional.id"] = world.topic
    with pytest.raises(DatabaseBehind), other.life() as writer:
        writer.recover()
    url = other.engine.url.render_as_string(hide_password=False)
    code, out, err = resolve("--accept-mixed", "--confirm", world.topic, "--output", "json", "--store", url)
    assert (code, [row["Outcome"] for row in json.loads(out)]) == (0, ["nothing recorded", "open"])
    assert "it will be aborted" in err
    assert "accepted: aborted it in Kafka" in err


def test_what_is_not_broken_is_not_accepted(world: World, resolve: Resolve) -> None:
    pay(world, "decided", "commit database")
    before = world.store.read_state(world.topic)
    code, out, err = resolve("--accept-mixed", "--confirm", world.topic)
    assert (code, out) == (5, "")
    assert "nothing is broken: without --accept-mixed it is committed; nothing was done" in err
    assert world.store.read_state(world.topic) == before
    code, _, err = resolve("--accept-mixed", "--confirm", "stranger", name="stranger")
    assert (code, "the store has no row of it" in err) == (1, True)


def test_what_has_changed_since_it_was_shown_is_left_alone(
    world: World, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was confirmed is accepted, or nothing."""
    tear(world)

    def accept_meanwhile(_transactional_id: str, _confirmed: str | None) -> bool:
        with world.life() as writer:
            writer.recover(accept_mixed=True)
        pay(world, "decided", "commit database")
        return True

    monkeypatch.setattr(command, "_is_confirmed", accept_meanwhile)
    code, _, err = resolve("--accept-mixed", "--confirm", world.topic)
    assert (code, "it has changed since it was shown; nothing was done" in err) == (3, True)
    with world.life() as writer:
        assert writer.inspect().ids[0].finding.name == "DECIDED"
