"""The sink on Apache Kafka, in `resume`: what it keeps through a crash, and what it cannot keep.

Apache Kafka 4.3 has no two-phase commit. Between a decision and its completion a prepared transaction has its
timeout, and a driver that is away for longer loses it: the hole is shown here, with how it is reported.
"""

from collections import Counter
from pathlib import Path

import pytest
from tests.support.effort import long_form
from tests.support.spark_torture import Fault
from tests.support.spark_torture_lives import BareTorture, Torture
from tools.servers import apache_kafka

from tallystick.spark.sink.driver.recovery import resolve
from tallystick.testing import eventually

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
TIMEOUT_MS = 20_000

pytestmark = [
    pytest.mark.gate(0),
    pytest.mark.server,
    pytest.mark.kafka,
    pytest.mark.timeout(1200),
    long_form,
    pytest.mark.skipif(apache_kafka.find_missing() is not None, reason=str(apache_kafka.find_missing())),
]


def on_kafka(torture: Torture) -> Torture:
    torture.broker = apache_kafka.ApacheKafka(directory=torture.folder / "kafka", settings=SETTINGS)
    torture.mode = "resume"
    return torture


def test_a_decided_batch_is_completed_by_the_next_driver(tmp_path: Path) -> None:
    """[SPK-21] Under Spark; killed among the participants, and again when the next one begins."""
    torture = on_kafka(Torture(0, tmp_path, starts=3, rows_a_start=600))
    with torture.broker:
        torture.create_topics()
        torture.produce()
        for point in ("end.among", "claim.after"):
            torture.drive(torture.prepare([Fault(point, 1, "kill-driver")], runs=1))
            assert torture.last_outcome == "killed"
        torture.drive(torture.prepare([], runs=1))
        torture.check()
    assert torture.told.clean, torture.told
    assert torture.finished


def test_a_driver_that_is_away_for_longer_than_the_timeout_loses_rows_and_says_so(tmp_path: Path) -> None:
    """The hole: decided, not completed, and aborted by the cluster. Every start says so; none goes on."""
    torture = on_kafka(BareTorture(0, tmp_path, starts=2, rows_a_start=600))
    torture.more = {"kafka.transaction.timeout.ms": str(TIMEOUT_MS)}
    with torture.broker:
        torture.create_topics()
        torture.produce()
        torture.drive(torture.prepare([Fault("end.before", 1, "kill-driver")], runs=1))
        assert torture.last_outcome == "killed"
        eventually(lambda: torture.open_transactions() == [], deadline_s=120)
        assert torture.written() == Counter(), "the decided batch is gone"
        for _ in range(2):
            torture.drive(torture.prepare([], runs=1))
            assert "DecisionBroken" in torture.last_outcome
            assert "aborted by the cluster" in torture.last_outcome
        client = {"bootstrap.servers": torture.broker.bootstrap, "tallystick.modes": "resume"}
        assert resolve(torture.prefix, client, retire=True).lost_ids
        assert resolve(torture.prefix, client, dry_run=True).decision is None
