"""The demo, in small: the broker and the driver are killed, and each row is there exactly once."""

from pathlib import Path

import pytest

from tallystick.demo import Crash, DemoSettings
from tallystick.demo.demo_run import DemoRun

pytestmark = [pytest.mark.slow, pytest.mark.server]


@pytest.mark.timeout(600)
def test_flights_arrive_once_although_broker_and_driver_are_killed(tmp_path: Path) -> None:
    """[PIP-1]"""
    said: list[str] = []
    setting = DemoSettings(master="local[2, 4]", rows=3000, crashes=(Crash.BROKER, Crash.DRIVER))
    outcome = DemoRun(tmp_path, setting, said.append).run()
    assert outcome.is_exactly_once, "\n".join(said)
    assert {each.target for each in outcome.checks} == {
        "topic delays.by_flight",
        "topic delays.in_lake",
        "topic delays.per_hour",
        "PostgreSQL table delays",
        "Delta table delays",
    }
    assert tuple(outcome.survived) == setting.crashes
    assert outcome.in_doubt > 0, "the kills came while transactions were open"
