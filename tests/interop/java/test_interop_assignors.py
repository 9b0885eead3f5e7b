"""Our assignors beside Apache Kafka's own, on groups that change at random."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.assignors import Groups, Line, as_line, told
from tools.servers import apache_kafka

from tallystick.client.assignors.assign import ASSIGNORS

GROUPS = int(os.environ.get("TALLYSTICK_ASSIGNOR_GROUPS", "60"))
REBALANCES = 6

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def oracle() -> Iterator[Callable[[Line], dict[str, Any]]]:
    source = Path(__file__).parent / "AssignorOracle.java"
    process = subprocess.Popen(
        apache_kafka.make_java_command(str(source)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(line: Line) -> dict[str, Any]:
        stdin.write(json.dumps(line) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    yield ask
    stdin.close()
    process.wait(30)
    stdout.close()


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_the_same_groups_get_the_same_assignments(
    name: str, oracle: Callable[[Line], dict[str, Any]]
) -> None:
    for seed in range(GROUPS):
        groups = Groups(seed, name, racks=seed % 2 == 1, alike=seed % 4 < 2)
        for _ in range(REBALANCES):
            ours = ASSIGNORS[name].assign(groups.topics, groups.members)
            kafkas = oracle(as_line(name, groups.topics, groups.members))
            assert told(ours) == {member: sorted(got) for member, got in kafkas.items()}, f"seed {seed}"
            groups.settle(ours)
