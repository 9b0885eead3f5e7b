"""The options of the sink: all problems at once, and what a producer is set to."""

import pytest

from tallystick.client.config import ProducerConfig
from tallystick.kernel.settings import BadConfig
from tallystick.spark.options.option_table import Query
from tallystick.spark.options.sink_options import TIMEOUT_MS, write_options
from tallystick.spark.protocol.decide import NewCheckpoint

LEAST = {"kafka.bootstrap.servers": "localhost:9092", "transactional.id.prefix": "p"}


def test_names_are_taken_in_any_case_and_spark_adds_some() -> None:
    given = {
        **LEAST,
        "Topic": "t",
        "ONNEWCHECKPOINT": "restart",
        "checkpointlocation": "/c",
        "queryname": "x",
        "tallystick.modes": "2pc, resume",
        "kafka.compression.type": "lz4",
    }
    found = write_options(given, Query.STREAM)
    assert (found.topic, found.on_new, found.checkpoint) == ("t", NewCheckpoint.RESTART, "/c")
    assert found.modes == ("2pc", "resume")
    assert found.client["compression.type"] == "lz4"


def test_all_problems_are_told_at_once() -> None:
    given = {
        "transactional.id.prefix": "a b",
        "kafka.transactional.id": "mine",
        "kafka.compression.type": "rar",
        "onNewCheckpoint": "maybe",
        "subscribe": "t",
        "tallystick.modes": "resume,2pc",
    }
    with pytest.raises(BadConfig, match=r"write\.id: longer than 200 bytes"):
        write_options({**LEAST, "write.id": "d" * 201}, Query.BATCH)
    with pytest.raises(BadConfig) as caught:
        write_options(given, Query.STREAM)
    told = str(caught.value)
    for name in (
        "transactional.id.prefix: 'a b'",
        "kafka.transactional.id: cannot be set",
        "kafka.compression.type: 'rar'",
        "kafka.bootstrap.servers",
        "onNewCheckpoint: 'maybe'",
        "subscribe: an option of the source",
    ):
        assert name in told


@pytest.mark.parametrize(
    ("modes", "two_phase", "timeout_ms"),
    [
        ("2pc", True, None),
        ("2pc,keep,resume", True, TIMEOUT_MS),
        ("keep", False, TIMEOUT_MS),
        ("resume", False, TIMEOUT_MS),
    ],
)
def test_a_prepared_transaction_lasts_as_long_as_it_can(
    modes: str, timeout_ms: int | None, *, two_phase: bool
) -> None:
    options = write_options({**LEAST, "topic": "t", "tallystick.modes": modes}, Query.STREAM)
    config = ProducerConfig.parse(options.of_worker("p/w/0123456789abcdef/0"))
    assert config.transaction_two_phase_commit_enable is two_phase
    assert config.modes == tuple(modes.split(","))
    if timeout_ms is not None:
        assert config.transaction_timeout_ms == timeout_ms
    driver = ProducerConfig.parse(options.of_driver)
    assert (driver.transactional_id, driver.transaction_two_phase_commit_enable) == (None, False)
