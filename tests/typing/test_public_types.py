"""The public API reveals the types that its documentation promises (style R10)."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from tallystick.testing import EmbeddedBroker, FakeClock, eventually

with EmbeddedBroker() as broker:
    reveal_type(broker)
    reveal_type(broker.bootstrap_servers)
reveal_type(eventually(lambda: 7))
reveal_type(FakeClock().now_ms())
"""

REVEALED = [
    '"tallystick.broker.embedded.EmbeddedBroker"',
    '"str"',
    '"int"',
    '"TimestampMs"',
]


@pytest.mark.slow
def test_revealed_types(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    said = [line.partition("Revealed type is ")[2] for line in done.stdout.splitlines() if "Revealed" in line]
    assert [text.replace("tallystick.kernel.ids.", "") for text in said] == REVEALED, (
        done.stdout + done.stderr
    )
