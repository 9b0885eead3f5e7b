"""`tallystick demo --quick`: each part is killed, and rows and records are equal; a difference is seen."""

from pathlib import Path

import pytest

from tallystick.cli.main import main
from tallystick.demo.payments import BROKER, WRITERS, PaymentsRun, compare

pytestmark = pytest.mark.server


@pytest.mark.slow
def test_payments_are_rows_and_records_although_each_part_is_killed(tmp_path: Path) -> None:
    """[DW-1]"""
    said: list[str] = []
    result = PaymentsRun(tmp_path, said.append, seconds=0).run()
    assert result.is_exactly_once, "\n".join(said)
    assert set(result.kills) == {*WRITERS, BROKER}
    assert {each.target for each in result.checks} == {f"payments of {name}" for name in WRITERS}
    assert all(each.expected > 0 for each in result.checks)


def test_a_lost_a_doubled_and_an_invented_payment_are_seen() -> None:
    rows = [("till-1", 1), ("till-1", 2), ("till-2", 1)]
    first, second = compare(rows, [("till-1", 1), ("till-1", 1), ("till-2", 1), ("till-2", 2)])
    assert (first.missing, first.duplicated, first.wrong, first.is_exact) == (1, 1, 0, False)
    assert (second.missing, second.duplicated, second.wrong, second.is_exact) == (0, 0, 1, False)
    assert all(each.is_exact for each in compare(rows, list(reversed(rows))))


def test_settings_of_the_demo_on_spark_are_refused_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--quick", "--rows", "3"]) == 2
    assert "--quick: there are no --rows" in capsys.readouterr().err
