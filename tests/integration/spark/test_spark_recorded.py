"""Our Spark source beside what was recorded of Spark's own, without Java: see `test_spark_differences.py`."""

import json
from collections.abc import Iterator

import pytest
from tests.support.spark_cases import (
    ERROR,
    RECORDED,
    RECORDED_SEEDS,
    Outcome,
    build_cluster,
    draw_options,
    is_documented,
    to_rows,
)

from tallystick.kernel.errors import TallystickError
from tallystick.spark.source.batch_reader import BatchReader
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(in_process=True) as running:
        build_cluster(running.bootstrap_servers)
        yield running


@pytest.fixture(scope="module")
def recorded() -> dict[str, Outcome]:
    return json.loads(RECORDED.read_text())


def read_batch(broker: EmbeddedBroker, options: dict[str, str]) -> Outcome:
    # Half a minute is too long for a topic that will never be there.
    timeouts = dict.fromkeys(("kafka.default.api.timeout.ms", "kafka.request.timeout.ms"), "1500")
    try:
        reader = BatchReader({"kafka.bootstrap.servers": broker.bootstrap_servers, **timeouts, **options})
        batches = [rows for task in reader.partitions() for rows in reader.read(task)]
    except TallystickError:
        return ERROR
    rows = [row for batch in batches for row in batch.to_pylist()]
    return to_rows([{**row, "ms": round(row["timestamp"].timestamp() * 1000)} for row in rows])


@pytest.mark.gate(2)
@pytest.mark.parametrize("seed", RECORDED_SEEDS)
def test_a_batch(broker: EmbeddedBroker, recorded: dict[str, Outcome], seed: int) -> None:
    """[SPK-1] The rows of Spark's own connector, or a difference that docs/spark.md has."""
    options, sparks = draw_options(seed), recorded[str(seed)]
    ours = read_batch(broker, options)
    assert ours == sparks or is_documented(options, ours, sparks), options
