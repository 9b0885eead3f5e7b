"""Forks with a client in every state: the child's calls are refused, the parent's go on undisturbed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.raw_producer import committed_values

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


FORKED_BETWEEN_RUNS = """
import asyncio, os, sys
from tallystick import TopicPartition, aio, errors

plain = {"bootstrap.servers": sys.argv[1], "linger.ms": 60_000}
parents_loop = asyncio.Runner()


async def begin():
    producer = aio.Producer({**plain, "transactional.id": "forked-aio"})
    await producer.init_transactions()
    await producer.begin_transaction()
    await producer.send("forked-aio", b"one")
    await producer.flush()
    await producer.send("forked-aio", b"two")
    consumer = aio.Consumer({"bootstrap.servers": sys.argv[1]})
    consumer.assign([TopicPartition("forked-aio", 0)])
    await consumer.poll(0)
    return producer, consumer


producer, consumer = parents_loop.run(begin())
AT = TopicPartition("forked-aio", 0)
CALLS = [
    lambda: producer.send("forked-aio", b"child"),
    lambda: producer.send("forked-aio-too", b"child"),
    lambda: producer.send_batch("forked-aio", [b"child"]),
    lambda: producer.flush(),
    lambda: producer.commit_transaction(),
    lambda: producer.abort_transaction(),
    lambda: producer.start_commit(),
    lambda: consumer.poll(0),
    lambda: consumer.commit(),
    lambda: consumer.position(AT),
]


async def try_all():
    for call in CALLS:
        try:
            await call()
        except errors.IllegalState as exc:
            assert "opened before the fork" in str(exc), exc
        else:
            raise AssertionError("not refused")
    await producer.close()
    await consumer.close()


if not (child := os.fork()):
    try:
        asyncio.run(try_all())
        parents_loop.run(try_all())
    except BaseException as exc:
        print(repr(exc), file=sys.stderr)
        os._exit(1)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert not status


async def end():
    await producer.abort_transaction()
    await producer.begin_transaction()
    await producer.send("forked-aio", b"three")
    await producer.commit_transaction()
    await producer.close()
    await consumer.close()


parents_loop.run(end())
parents_loop.close()
"""


def test_a_child_uses_nothing_of_its_parents_clients_under_asyncio(broker: EmbeddedBroker) -> None:
    """[CLI-61] Neither on a loop of its own nor on its copy of the parent's."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED_BETWEEN_RUNS, broker.bootstrap_servers],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert committed_values(broker, "forked-aio", 0) == ["three"]


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
