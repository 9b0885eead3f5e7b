"""Forks with a client in every state: the child's calls are refused, the parent's go on undisturbed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.testing import EmbeddedBroker

pytestmark = [
    pytest.mark.server,
    pytest.mark.broker(
        in_process=False,
        num_partitions=1,
        config={"transaction.two.phase.commit.enable": "true", "group.initial.rebalance.delay.ms": "0"},
    ),
]

ROOT = Path(__file__).parents[3]


@pytest.mark.gate(1)
@pytest.mark.parametrize("kind", ["producer", "transaction", "consumer", "admin", "writer"])
def test_a_child_uses_nothing_of_its_parents_clients(broker: EmbeddedBroker, kind: str) -> None:
    """[CLI-61] Neither calls, nor close, nor garbage collection, nor either way to end a process."""
    assert broker.pid is not None
    program = "forking_writers" if kind == "writer" else "forking"
    try:
        done = run(program, kind, broker.bootstrap_servers, str(broker.pid))
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert done.stderr == ""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(
                sys.executable,
                "-W",
                "error",
                "-W",
                "ignore::DeprecationWarning",
                "-m",
                f"tests.support.{program}",
            ),
            *arguments,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
