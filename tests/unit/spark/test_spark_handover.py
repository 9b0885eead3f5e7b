"""The lease of a running batch: found by its own driver, under its own options, until the batch has ended."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from pyspark import SparkContext, SparkFiles
from tests.support.spark_values import LEASES

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.spark.data_source import KafkaDataSource
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import BatchLease, decode_lease, encode_lease
from tallystick.spark.sink.driver import lease_handover

OPTIONS = SinkOptions(prefix="p", client={"bootstrap.servers": "localhost:9092"})
LEASE = BatchLease(
    nonce="n", coordinator=ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(2)), transaction_version=2
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    yield
    lease_handover.remove_lease(OPTIONS)


def test_a_lease_that_was_left_is_found_until_the_batch_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease_handover.save_lease(OPTIONS, LEASE)
    assert lease_handover.find_lease(OPTIONS) == LEASE
    assert lease_handover.find_lease(OPTIONS) == LEASE, "an abort that failed is tried again under it"
    assert lease_handover.find_lease(replace(OPTIONS, prefix="other")) is None
    with monkeypatch.context() as another:
        another.setattr(SparkFiles, "_root_directory", str(tmp_path / "driver"))
        assert lease_handover.find_lease(OPTIONS) is None, "of another driver on this host"
    lease_handover.remove_lease(OPTIONS)
    assert lease_handover.find_lease(OPTIONS) is None
    assert list(tmp_path.iterdir()) == []


def test_sessions_of_one_connect_server_share_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session's own folder below it may not exist when its first batch begins."""
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path / "session"))
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "session")
    lease_handover.save_lease(OPTIONS, LEASE)
    assert lease_handover.find_lease(OPTIONS) == LEASE


def test_without_a_session_no_lease_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", False)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # of other tests
    monkeypatch.setattr(SparkFiles, "_sc", None)
    lease_handover.save_lease(OPTIONS, LEASE)
    assert lease_handover.find_lease(OPTIONS) is None


def test_a_process_that_begins_and_ends_a_batch_keeps_its_lease_in_memory(tmp_path: Path) -> None:
    lease_handover.keep_in_memory(OPTIONS, LEASE)
    assert lease_handover.find_lease(OPTIONS) == LEASE
    assert list(tmp_path.iterdir()) == []
    lease_handover.remove_lease(OPTIONS)
    assert lease_handover.find_lease(OPTIONS) is None


@given(LEASES)
def test_a_lease_of_an_earlier_version_is_read(lease: BatchLease) -> None:
    """It does not say when it was taken."""
    earlier = encode_lease(lease).replace(b',"began_ms":%d' % lease.began_ms, b"")
    assert decode_lease(earlier) == replace(lease, began_ms=0)


def test_only_a_data_source_that_was_not_pickled_begins_batches() -> None:
    """Spark commits and aborts with an unpickled one."""
    source = KafkaDataSource({"topic": "t"})
    copy = pickle.loads(pickle.dumps(source))
    assert source.is_new
    assert not copy.is_new
    assert copy.options == source.options
