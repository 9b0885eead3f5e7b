"""What a worker that is used again shows to the garbage collector."""

import gc
import subprocess
import sys

import pytest

from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.sink.context import get_sink_context

SHOWN = """
import gc, sys
from tallystick.spark.data_source import KafkaDataSource
from tallystick.spark.runtime.worker_gc import freeze_loaded_modules
KafkaDataSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "orders"}).reader(None)
hidden = gc.get_freeze_count()
freeze_loaded_modules()
print(hidden > 10_000, hidden == gc.get_freeze_count(), end=" ")
import wave
freeze_loaded_modules()
print(gc.get_freeze_count() > hidden)
"""


def shown(environment: dict[str, str]) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SHOWN], env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_modules_are_hidden_once_and_again_when_there_are_more() -> None:
    """PySpark 4.3 daemon.py: `reuse = os.environ.get("SPARK_REUSE_WORKER")`, and then `gc.collect()`."""
    assert shown({"SPARK_REUSE_WORKER": "1"}) == ["True", "True", "True"]


@pytest.mark.slow
def test_a_users_own_process_is_left_alone() -> None:
    assert shown({}) == ["False", "True", "False"]


def test_a_worker_that_writes_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    before = gc.get_freeze_count()
    try:
        here = get_sink_context(SinkOptions(prefix="settled", client={"bootstrap.servers": "localhost:1"}))
        here.close()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
