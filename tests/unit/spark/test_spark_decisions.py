"""Is a topic fit to keep decisions?"""

import pytest

from tallystick.spark.decisions.topic import find_durability_risks, find_unusable_config


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
