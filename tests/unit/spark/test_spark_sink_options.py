"""The options of the sink: all problems at once, and what a producer is set to."""

import pytest

from tallystick.client.settings.config import ProducerConfig
from tallystick.kernel.settings import BadConfig
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import TRANSACTION_TIMEOUT_MS, parse_sink_options
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
    found = parse_sink_options(given, QueryType.STREAM)
    assert (found.topic, found.on_new_checkpoint, found.checkpoint) == ("t", NewCheckpoint.RESTART, "/c")
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
        parse_sink_options({**LEAST, "write.id": "d" * 201}, QueryType.BATCH)
    with pytest.raises(BadConfig) as caught:
        parse_sink_options(given, QueryType.STREAM)
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
        ("2pc,keep,resume", True, TRANSACTION_TIMEOUT_MS),
        ("keep", False, TRANSACTION_TIMEOUT_MS),
        ("resume", False, TRANSACTION_TIMEOUT_MS),
    ],
)
def test_a_prepared_transaction_lasts_as_long_as_it_can(
    modes: str, timeout_ms: int | None, *, two_phase: bool
) -> None:
    options = parse_sink_options({**LEAST, "topic": "t", "tallystick.modes": modes}, QueryType.STREAM)
    config = ProducerConfig.parse(options.list_producer_settings("p/w/0123456789abcdef/0"))
    assert config.transaction_two_phase_commit_enable is two_phase
    assert config.modes == tuple(modes.split(","))
    if timeout_ms is not None:
        assert config.transaction_timeout_ms == timeout_ms
    driver = ProducerConfig.parse(options.driver_client_settings)
    assert (driver.transactional_id, driver.transaction_two_phase_commit_enable) == (None, False)
