"""Names and text of metrics, read by a parser of the Prometheus authors."""

import math
import string
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tallystick.broker.metrics.broker_metrics import BrokerMetrics, MetricsRegistry
from tallystick.broker.txn.machine.model import ForcedCause, TxnForcedOutcome
from tallystick.kernel.check import InvariantBroken
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TimestampMs
from tallystick.metrics.exposition import PrometheusText
from tallystick.metrics.model import (
    MetricFamily,
    MetricReading,
    MetricType,
    Sample,
    make_counter,
    make_gauge,
    make_kafka_metric,
    to_prometheus_name,
)

Parsed = dict[str, dict[tuple[tuple[str, str], ...], float]]


def text_of(registry: MetricsRegistry) -> str:
    readings = [(family, list(samples)) for family, samples in filter(None, registry.read())]
    return PrometheusText().format(readings).decode()


def parsed(registry: MetricsRegistry) -> Parsed:
    """Every sample by name and labels."""
    found: Parsed = {}
    for family in text_string_to_metric_families(text_of(registry)):
        for sample in family.samples:
            labels = tuple(sample.labels.items())
            assert labels not in found.setdefault(sample.name, {}), "a sample is there twice"
            found[sample.name][labels] = sample.value
    return found


def showing(family: MetricFamily, samples: Iterable[Sample]) -> MetricsRegistry:
    registry = MetricsRegistry()
    registry.add_source(lambda: iter([(family, samples)]))
    return registry


@pytest.mark.parametrize(
    ("mbean", "name"),
    [
        (
            "kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount",
            "kafka_server_replicamanager_partitionswithlatetransactionscount",
        ),
        (
            "kafka.coordinator.transaction:type=TransactionStateManager,name=ActiveTransactionOpenTimeMaxMs",
            "kafka_coordinator_transaction_transactionstatemanager_activetransactionopentimemaxms",
        ),
        ("kafka.server:type=A-b,name=MessagesInPerSec", "kafka_server_a_b_messagesin_total"),
        (
            "kafka.server:type=AddPartitionsToTxnManager,name=VerificationFailureRate",
            "kafka_server_addpartitionstotxnmanager_verificationfailure_total",
        ),
    ],
)
def test_names_of_kafkas_metrics_are_the_ones_it_is_exported_under(mbean: str, name: str) -> None:
    assert to_prometheus_name(mbean) == name
    made = make_kafka_metric(mbean, "Help.")
    assert (made.name, made.mbean) == (name, mbean)
    assert (made.type is MetricType.COUNTER) is name.endswith("_total")


@given(st.lists(st.tuples(st.text(), st.text()), unique=True), st.text(string.printable))
def test_any_label_value_and_help_come_back(labels: list[tuple[str, str]], text: str) -> None:
    family = make_gauge("things", text, ("a", "b"))
    registry = showing(family, [(values, n) for n, values in enumerate(labels)])
    assert parsed(registry).get("tallystick_things", {}) == {
        (("a", a), ("b", b)): n for n, (a, b) in enumerate(labels)
    }


@pytest.mark.parametrize("value", [0, 2**62, -1, 0.5, 1e300, math.inf, math.nan])
def test_any_number_comes_back(value: float) -> None:
    got = parsed(showing(make_gauge("things", "Help."), [((), value)]))["tallystick_things"][()]
    assert got == value or (math.isnan(got) and math.isnan(value))


def test_help_says_kafkas_name() -> None:
    family = make_kafka_metric("kafka.server:type=ReplicaManager,name=PartitionCount", "Partitions.")
    (read,) = text_string_to_metric_families(text_of(showing(family, [((), 1)])))
    assert read.documentation == "Partitions. MBean kafka.server:type=ReplicaManager,name=PartitionCount"
    assert read.type == "gauge"


def test_a_counter_shows_what_it_knows_before_it_counts() -> None:
    registry = MetricsRegistry()
    made = registry.counter(make_counter("ends", "Help.", ("how",)), ("well",), ("badly",))
    assert parsed(registry)["tallystick_ends_total"] == {(("how", "badly"),): 0, (("how", "well"),): 0}
    made.add("badly")
    made.add("badly", by=2)
    made.add("not at all")
    assert made.value("badly") == 3
    assert parsed(registry)["tallystick_ends_total"][(("how", "not at all"),)] == 1


def test_what_the_broker_counts() -> None:
    metrics = BrokerMetrics()
    metrics.verification_failures.add()
    writer = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))
    metrics.count_forced_outcome(
        TxnForcedOutcome(writer=writer, cause=ForcedCause.TIMED_OUT, at_ms=TimestampMs(1))
    )
    metrics.deletions_refused.add()
    shown = parsed(metrics.registry)
    assert shown["kafka_server_addpartitionstotxnmanager_verificationfailure_total"] == {(): 1}
    assert shown["tallystick_forced_outcomes_total"] == {
        (("cause", "terminated"),): 0,
        (("cause", "timed_out"),): 1,
        (("cause", "marker"),): 0,
    }
    assert shown["tallystick_deletions_refused_total"] == {(): 1}


@pytest.mark.slow
def test_a_source_at_work_frees_the_loop_between_readings() -> None:
    family = make_gauge("things", "Help.", ("n",))

    def source() -> Iterator[MetricReading | None]:
        yield None
        yield family, (((str(n),), n) for n in range(10_000))

    registry = MetricsRegistry()
    registry.add_source(source)
    assert next(registry.read()) is None
    assert len(parsed(registry)["tallystick_things"]) == 10_000


@pytest.mark.parametrize("name", ["Upper", "has-dash", "", "1st"])
def test_a_name_that_prometheus_refuses_is_a_mistake_of_ours(name: str) -> None:
    with pytest.raises(InvariantBroken):
        MetricFamily(name=name, type=MetricType.GAUGE, help="")
