"""`tallystick demo --quick`: each part is killed, and rows and records are equal; a difference is seen."""

import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.cli.main import main
from tallystick.demo.payments import BROKER, WRITERS, PaymentsRun, compare
from tallystick.testing import eventually

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


def test_a_folder_of_a_former_demo_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "payments.db").touch()
    for words in (["--quick"], []):
        assert main(["demo", *words, "--work-dir", str(tmp_path)]) == 2
        assert "is not empty" in capsys.readouterr().err


_KILLED_DEMO = """
import os, signal, sys
from pathlib import Path
from tallystick.demo.payments import _WriterProcess
log = Path(sys.argv[1])
writer = _WriterProcess("till-1", "127.0.0.1:9", f"sqlite:///{log.with_suffix('.db')}", log)
while not (log.exists() and log.read_bytes()):
    pass
print(writer._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_says_why_it_does_not_pay_and_ends_with_a_killed_demo(tmp_path: Path) -> None:
    log = tmp_path / "writers.log"
    demo = subprocess.run(
        [sys.executable, "-c", _KILLED_DEMO, log], stdout=subprocess.PIPE, timeout=60, check=False
    )
    eventually(lambda: not _is_running(int(demo.stdout)))
    assert "till-1" in log.read_text()


def _is_running(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(state.stdout) and not state.stdout.startswith("Z")
