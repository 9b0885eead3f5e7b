"""What Spark says of a batch, in our words."""

import pytest

from tallystick.pipeline.progress import Progress, parse_progress

# As Spark 4.3 printed it for a query over our source.
SAID = {
    "name": "copy.all",
    "timestamp": "2026-11-21T11:47:55.818Z",
    "batchId": 3,
    "numInputRows": 300,
    "durationMs": {"addBatch": 80, "latestOffset": 29, "triggerExecution": 150},
    "sources": [
        {
            "startOffset": None,
            "endOffset": {"in": {"0": 300, "1": 7}},
            "latestOffset": {"in": {"0": 1000, "1": 7}},
            "numInputRows": 300,
        }
    ],
}


def test_a_batch_has_its_rows_its_speed_and_what_is_left_to_read() -> None:
    progress = parse_progress("all", SAID)
    assert progress == Progress(
        output="all", batch=3, at="2026-11-21T11:47:55.818Z", rows=300, duration_ms=150, lag=700
    )
    assert progress.rows_per_s == 2000


def test_a_trigger_without_a_batch_is_none() -> None:
    assert parse_progress("all", {**SAID, "durationMs": {"latestOffset": 2, "triggerExecution": 3}}) is None


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        ('{"t": {"0": 1}}', '{"t": {"0": 5}}', 4),  # as texts
        ({"t": {"0": 1}}, {"t": {"0": 5, "1": 2}}, 6),  # a partition that is new
        ({"t": {"0": 5}}, {"t": {"0": 1}}, 0),  # asked before the batch
        ({"t": {"0": 5}}, None, None),
        (17, 18, None),  # of another source
        ("file 3", "file 4", None),
    ],
)
def test_lag_is_between_the_batchs_end_and_the_logs(end: object, latest: object, lag: int | None) -> None:
    progress = parse_progress("all", {**SAID, "sources": [{"endOffset": end, "latestOffset": latest}]})
    assert progress is not None
    assert progress.lag == lag


def test_the_lags_of_all_sources_are_one() -> None:
    (source,) = SAID["sources"]  # type: ignore[misc]
    progress = parse_progress(
        "all", {**SAID, "sources": [source, source, {"endOffset": 1, "latestOffset": 2}]}
    )
    assert progress is not None
    assert progress.lag == 1400
