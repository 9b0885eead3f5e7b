"""Real alarms, aimed at the moment when the database has answered COMMIT, and whose handler raises.

That is what a soft time limit does (Celery, RQ, `signal.alarm`). Nothing is traced or patched: the connection
only notes when its COMMIT was carried out, and sets the timer. What a power loss takes is no part of it, so
the files are in memory where there is room.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from tests.support.effort import LONG
from tests.support.servers import quick_place

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
HITS, PROCESSES = (20_000, 4) if LONG else (40, 1)


@pytest.mark.gate(0)
@pytest.mark.timeout(3_000)
def test_no_alarm_tears() -> None:
    """[DW-3, DW-7]"""
    each = -(-HITS // PROCESSES)
    seen: Counter[str] = Counter()
    torn: list[str] = []
    with tempfile.TemporaryDirectory(dir=quick_place()) as folder:
        children = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.alarmed_child",
                    f"{folder}/{n}",
                    str(939 + n),
                    str(each),
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(PROCESSES)
        ]
        try:
            for child in children:
                told, _ = child.communicate()
                assert child.returncode == 0, f"{child.args}: see above what it has said"
                said = json.loads(told)
                torn += said.pop("torn")
                seen += Counter(said)
        finally:
            for child in children:
                child.kill()
                child.wait()
    print(f"{seen['hits']} hits of {seen['gone_off']} alarms in {seen['rounds']} rounds, {len(torn)} torn")
    assert torn == []
    assert seen["hits"] >= HITS
