"""Is a topic fit to keep decisions, and which stores can do without its notes?"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tallystick.client.errors import NotAuthorized
from tallystick.kernel.codes import ErrorCode
from tallystick.spark.decisions.store_log import DatabaseDecisionLog
from tallystick.spark.decisions.topic import find_durability_risks, find_unusable_config
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.decision_fold import DecisionState


@pytest.mark.parametrize(
    ("found", "replicas", "why"),
    [
        ({"cleanup.policy": "compact", "min.insync.replicas": "2"}, 3, None),
        ({"cleanup.policy": "compact", "min.insync.replicas": "3"}, 3, None),
        ({}, 1, None),
        ({"cleanup.policy": "delete"}, 3, "cleanup.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, 3, "cleanup.policy=compact,delete"),
        ({"cleanup.policy": "compact", "min.insync.replicas": "2"}, 1, "no decision could be written"),
    ],
)
def test_a_topic_that_loses_decisions_or_takes_none_is_refused(
    found: dict[str, str | None], replicas: int, why: str | None
) -> None:
    """What cannot be seen, for want of a grant, is no reason."""
    refusal = find_unusable_config("d", found, replicas)
    assert (refusal is None) == (why is None)
    if why is not None:
        assert why in str(refusal)
        assert "Nothing was begun" in str(refusal)


@pytest.mark.parametrize(
    ("found", "replicas", "brokers", "told"),
    [
        ({"min.insync.replicas": "1"}, 1, 1, []),
        ({"min.insync.replicas": "1"}, 1, 3, ["one replica on 3 brokers"]),
        ({"min.insync.replicas": "2"}, 3, 3, []),
        ({"min.insync.replicas": "1"}, 3, 3, ["min.insync.replicas=1"]),
        ({"unclean.leader.election.enable": "true"}, 3, 3, ["unclean.leader.election.enable=true"]),
    ],
)
def test_how_a_decision_may_be_lost_is_said(
    found: dict[str, str | None], replicas: int, brokers: int, told: list[str]
) -> None:
    """The cluster is its owner's to set up, so nothing is refused."""
    worried = list(find_durability_risks(found, replicas, brokers))
    assert len(worried) == len(told)
    assert all(each in line for each, line in zip(told, worried, strict=True))


DECISION = Decision(nonce="n", participants=(), transaction_version=2, decided_ms=1, query_id="q")


class Store:
    """A store with one decision, which was completed: a database notes that, a lake table cannot."""

    prefix = "p"

    def __init__(self, *, keeps_completion: bool) -> None:
        self.keeps_completion = keeps_completion

    def create_table(self) -> None: ...

    def read(self) -> DecisionState:
        return DecisionState(decision=DECISION, is_complete=self.keeps_completion)


class NotesWithoutRights:
    """The topic of decisions, for a user who has no right on it."""

    def __getattr__(self, name: str) -> Any:
        async def refuse(*_: object) -> None:
            raise NotAuthorized("Metadata", "d", ErrorCode.TOPIC_AUTHORIZATION_FAILED, resource="d")

        return refuse


@pytest.mark.parametrize(
    "act",
    [lambda log: log.open(), lambda log: log.read(), lambda log: log.note(DECISION)],
    ids=["open", "read", "note"],
)
def test_a_lake_table_needs_notes_of_what_is_completed(
    act: Callable[[DatabaseDecisionLog], Coroutine[Any, Any, object]],
) -> None:
    """Without them, a decision whose ids have expired in Kafka would look like one that was broken."""
    log = DatabaseDecisionLog(Store(keeps_completion=False), 1000, notes=NotesWithoutRights())  # type: ignore[arg-type]
    with pytest.raises(NotAuthorized, match="tallystick acls create"):
        asyncio.run(act(log))


def test_a_database_can_do_without_notes(caplog: pytest.LogCaptureFixture) -> None:
    log = DatabaseDecisionLog(Store(keeps_completion=True), 1000, notes=NotesWithoutRights())  # type: ignore[arg-type]
    asyncio.run(log.open())
    assert asyncio.run(log.read()) == DecisionState(decision=DECISION, is_complete=True)
    assert caplog.text.count("the cluster takes no note of decisions") == 1
