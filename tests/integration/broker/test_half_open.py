"""Connections that stop in the middle of a handshake or login: ended in time, and in no one's way [LGN-4].

`make hostile` does the same with ten thousand at each point; here are three hundred, at all points in turn.
"""

from pathlib import Path

import pytest
from tools import half_open, hostile

pytestmark = pytest.mark.server

CONNECTIONS = 300


@pytest.mark.gate(0)
def test_producers_go_on_beside_hundreds_of_half_open_connections(tmp_path: Path) -> None:
    half_open.raise_descriptor_limit(CONNECTIONS)
    with half_open.Victims(tmp_path, timeout_ms=3_000) as victims:
        outcome = half_open.run_crowd(victims, half_open.POINTS, CONNECTIONS)
    assert not victims.failures
    assert outcome.connections == CONNECTIONS
    assert outcome.remaining == 0, "the broker ends every one of them"
    assert outcome.records > half_open.PRODUCERS
    assert outcome.grown_mib < hostile.RSS_MIB_GOAL
