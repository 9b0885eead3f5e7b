"""The notebook from Avro to Delta, run from its first cell to its last one: it kills its driver itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gate(0), pytest.mark.server, pytest.mark.timeout(600)]

FILE = Path(__file__).parents[3] / "examples/avro_to_delta.py"


def test_every_order_is_in_topic_and_table_once_although_the_driver_is_killed(tmp_path: Path) -> None:
    """[LAK-1] DuckDB reads the table; input, topic and table have the same ids and totals."""
    done = subprocess.run(
        [sys.executable, str(FILE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed with signal 9" in done.stdout
    before = re.search(r"records in the topic: ([\d,]+), rows in the table: ([\d,]+)", done.stdout)
    assert before is not None
    in_topic, in_table = (int(number.replace(",", "")) for number in before.groups())
    assert 0 < in_topic <= in_table < 18_000, "the decision comes first, and there was more to do"
    totals = re.search(r"^ordered: (.*)$.*different orders, (\{.*\})$", done.stdout, re.DOTALL | re.MULTILINE)
    assert totals is not None
    assert sorted(totals[1].strip("{}").split(", ")) == sorted(totals[2].strip("{}").split(", "))
    assert "every order once: 18,000 in the input, in the topic and in the table" in done.stdout
    assert list(tmp_path.iterdir()) == [], "it takes what it brought away again"


def test_the_cells_are_those_of_a_notebook() -> None:
    """Prose and code take turns, and no cell of prose has code in it."""
    cells = re.split(r"^# %%", FILE.read_text(), flags=re.MULTILINE)[1:]
    prose = [cell for cell in cells if cell.startswith(" [markdown]")]
    assert len(prose) >= 8
    for cell in prose:
        assert all(line.startswith("#") for line in cell.splitlines()[1:] if line), cell
