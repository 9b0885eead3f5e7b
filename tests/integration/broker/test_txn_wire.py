"""Transactions over the wire: KIP-939's worked examples field by field, and clients of every version at once.

What is compared is what a stranger sees: answers, `__transaction_state` read with a plain Fetch and in
Kafka's own fields, and the batches in the partition.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.effort import long_form
from tests.support.raw_producer import (
    Pair,
    RawProducer,
    Versions,
    committed_values,
    make_topic,
    read,
    rewrite,
    states_of,
    stored_forms,
)
from tests.support.raw_wire import RawConnection

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.embedded import EmbeddedBroker
from tallystick.broker.txn.machine.model import TxnEntry, TxnState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT16_MAX, INT32_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.protocol.messages.cluster.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tallystick.protocol.messages.txn.stored_transactions import TransactionLogValue
from tallystick.protocol.records import ControlType, parse_control_type

pytestmark = pytest.mark.server

MAX = INT16_MAX
TOPIC, PARTITIONS = "orders", 2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path, transaction_state_log_num_partitions=PARTITIONS) as running:
        make_topic(running, TOPIC)
        yield running


@dataclass
class Way:
    """How an example is gone through.

    restarts  the broker is killed and started between the steps
    climbs    epochs are asked for one by one; else the log is given the record that this would end with
    """

    broker: EmbeddedBroker
    restarts: bool
    climbs: bool

    def between(self, producer: RawProducer) -> None:
        if self.restarts:
            self._restart(producer)

    def climb(self, producer: RawProducer, epoch: int, **flags: bool) -> None:
        """By InitProducerId alone to the pair with this epoch."""
        if self.climbs:
            producer.init_until(epoch, **flags)
            return
        pair = (producer.pair[0], epoch)
        self._restart(producer, lambda entry: replace(entry, client=ident(*pair)))
        producer.became(pair)

    def _restart(self, producer: RawProducer, change: Callable[[TxnEntry], TxnEntry] | None = None) -> None:
        self.broker.kill()
        if change is not None:
            rewrite(self.broker, producer.name, change)
        self.broker.start()
        producer.reconnect()


@pytest.fixture(
    params=[
        pytest.param((False, False), id="no-restart"),
        pytest.param((True, False), id="restarts"),
        pytest.param((True, True), id="restarts-every-epoch", marks=long_form),
    ]
)
def way(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Way:
    return Way(broker, *request.param)


def ident(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def tc_state(value: TransactionLogValue) -> tuple[str, Pair, int, Pair]:
    """The "TC STATE" of KIP-939: state, producer, previous producer id, next producer."""
    return (
        TxnState(value.transaction_status).label,
        (value.producer_id, value.producer_epoch),
        value.previous_producer_id,
        (value.next_producer_id, value.next_producer_epoch),
    )


def newest(
    broker: EmbeddedBroker, producer: RawProducer, number: int = 1
) -> list[tuple[str, Pair, int, Pair]]:
    return [tc_state(value) for value in states_of(broker, producer.name, PARTITIONS)[-number:]]


def batches_of(broker: EmbeddedBroker) -> list[tuple[Pair, object]]:
    """Who signed each batch of the data, and what it is: a marker's type, or the values."""
    found, _ = read(broker, TOPIC, 0)
    return [
        (
            (header.producer_id, header.producer_epoch),
            parse_control_type(records[0]) if header.is_control else [record.value for record in records],
        )
        for header, records in found
    ]


NONE = (-1, -1)


@pytest.mark.gate(1)
def test_vanilla_transaction_with_epoch_overflow(broker: EmbeddedBroker, way: Way) -> None:
    """KIP-939 "Persisted Data Format Changes", "Vanilla KIP-890 transaction case with epoch overflow"."""
    with RawProducer(broker, "vanilla") as producer:
        producer.find()
        producer.init()
        way.climb(producer, MAX - 2)
        p42 = producer.pair[0]

        # 1. InitProducerId(false); TC STATE: Empty, ProducerId=42, ProducerEpoch=MAX-1
        answer = producer.init()
        assert producer.pair == (p42, MAX - 1)
        assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == NONE
        assert newest(broker, producer) == [("Empty", (p42, MAX - 1), -1, NONE)]
        way.between(producer)

        # 2. AddPartitionsToTxn; REQUEST: ProducerId=42, ProducerEpoch=MAX-1
        assert producer.write(TOPIC, 0, "a", "b") == 0
        assert newest(broker, producer) == [("Ongoing", (p42, MAX - 1), -1, NONE)]
        way.between(producer)

        # 3. Commit; TC STATE: PrepareCommit, ProducerEpoch=MAX, PrevProducerId=42, NextProducerId=85
        before = producer.pair
        assert producer.end().error_code == 0
        p85 = producer.pair[0]
        assert producer.pair == (p85, 0)
        assert p85 != p42
        producer.completed()

        # 4. (Transition in TC into CompleteCommit)
        assert newest(broker, producer, 2) == [
            ("PrepareCommit", (p42, MAX), p42, (p85, 0)),
            ("CompleteCommit", (p85, 0), p42, NONE),
        ]
        assert batches_of(broker) == [((p42, MAX - 1), [b"a", b"b"]), ((p42, MAX), ControlType.COMMIT)]
        way.between(producer)

        # "if the commit operation times out [...] we can detect the retry and return success"
        assert producer.end(pair=before).error_code == 0
        assert producer.pair == (p85, 0)
        assert producer.end(commit=False, pair=before).error_code == ErrorCode.INVALID_TXN_STATE
        assert producer.write(TOPIC, 0, "c") == 0
        assert producer.end().error_code == 0
        producer.completed()
        assert batches_of(broker)[2:] == [((p85, 0), [b"c"]), ((p85, 1), ControlType.COMMIT)]
        assert committed_values(broker, TOPIC, 0) == ["a", "b", "c"]


@pytest.mark.gate(1)
@pytest.mark.parametrize("commit", [True, False])
def test_two_phase_commit_with_two_epoch_overflows(broker: EmbeddedBroker, way: Way, commit: bool) -> None:
    """KIP-939 "Persisted Data Format Changes", "2PC transaction case with two epoch overflows"."""
    with RawProducer(broker, "two-phase") as producer:
        producer.find()
        producer.init(two_phase=True)
        way.climb(producer, MAX - 2, two_phase=True)
        p42 = producer.pair[0]
        token = (p42, MAX - 1)

        def kept(client: Pair) -> None:
            """InitProducerId(true): the client's pair moves, the transaction's does not."""
            answer = producer.init(keep=True, two_phase=True)
            assert answer.error_code == 0
            assert producer.pair == client
            assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == token
            assert newest(broker, producer) == [("Ongoing", token, -1, client)]

        # 1. InitProducerId(false)
        answer = producer.init(two_phase=True)
        assert producer.pair == token
        assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == NONE
        assert newest(broker, producer) == [("Empty", token, -1, NONE)]
        way.between(producer)

        # 2. AddPartitionsToTxn; 3. (Transaction is prepared on the client, then client crashed)
        assert producer.write(TOPIC, 0, "a", "b") == 0
        assert newest(broker, producer) == [("Ongoing", token, -1, NONE)]
        way.between(producer)

        # 4. InitProducerId(true); RESPONSE ProducerId=73, Epoch=0, OngoingTxn=42/MAX-1
        answer = producer.init(keep=True, two_phase=True)
        p73 = answer.producer_id
        assert p73 != p42
        assert producer.pair == (p73, 0)
        assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == token
        assert newest(broker, producer) == [("Ongoing", token, -1, (p73, 0))]
        way.between(producer)

        # 5. (crash the client) 6. InitProducerId(true)
        kept((p73, 1))
        way.between(producer)

        # 7. (crash the client a few times to drive the NextProducerEpoch to MAX-1)
        way.climb(producer, MAX - 1, keep=True, two_phase=True)
        assert newest(broker, producer) == [("Ongoing", token, -1, (p73, MAX - 1))]
        way.between(producer)

        # 8. InitProducerId(true)
        kept((p73, MAX))
        described = producer.describe()
        assert (described.producer_id, described.producer_epoch) == token
        assert described.transaction_timeout_ms == INT32_MAX
        way.between(producer)

        # Meanwhile the client writes nothing more, and neither do those before it.
        assert producer.write(TOPIC, 0, "late") == ErrorCode.INVALID_TXN_STATE
        assert producer.end(commit=commit, pair=token).error_code == ErrorCode.PRODUCER_FENCED
        assert producer.end(commit=commit, pair=(p73, 5)).error_code == ErrorCode.PRODUCER_FENCED

        # 9. Commit; REQUEST: ProducerId=73, ProducerEpoch=MAX; RESPONSE ProducerId=85, Epoch=0
        before = producer.pair
        assert producer.end(commit=commit).error_code == 0
        p85 = producer.pair[0]
        assert producer.pair == (p85, 0)
        assert p85 not in (p42, p73)
        producer.completed()

        # 10. (Transition in TC into CompleteCommit)
        outcome = "Commit" if commit else "Abort"
        assert newest(broker, producer, 2) == [
            (f"Prepare{outcome}", (p42, MAX), p73, (p85, 0)),
            (f"Complete{outcome}", (p85, 0), p73, NONE),
        ]
        marker = ControlType.COMMIT if commit else ControlType.ABORT
        assert batches_of(broker) == [(token, [b"a", b"b"]), ((p42, MAX), marker)]
        way.between(producer)
        assert producer.end(commit=commit, pair=before).error_code == 0, "the answer was lost"
        assert producer.pair == (p85, 0)
        assert committed_values(broker, TOPIC, 0) == (["a", "b"] if commit else [])


# ------------------------------------------------------------------------- clients of every version at once

EVERY_VERSION = [
    Versions(init=0, add=0, produce=3, end=0, offsets=0),
    Versions(init=1, add=1, produce=7, end=1, offsets=1),
    Versions(init=2, add=2, produce=9, end=2, offsets=2),
    Versions(init=3, add=3, produce=10, end=3, offsets=3),
    Versions(init=4, add=3, produce=11, end=4, offsets=4),
    Versions(init=5, add=3, produce=11, end=5, offsets=4),  # bumps, and names its partitions
    Versions(init=5, produce=12, end=5),
    Versions(init=6, produce=12, end=5),
]


@pytest.mark.gate(0)
@pytest.mark.parametrize("flush_policy", ["os", "ack"])
def test_clients_of_every_version_at_once(flush_policy: str) -> None:
    """Each commits and aborts in turn, back to back, all of them in the same partitions."""
    rounds = 12
    with EmbeddedBroker(flush_policy=flush_policy) as broker:
        make_topic(broker, TOPIC, 2)

        def run(number: int, versions: Versions) -> list[tuple[int, str]]:
            committed = []
            with RawProducer(broker, f"client-{number}", versions) as producer:
                producer.find()
                assert producer.init().error_code == 0
                for turn in range(rounds):
                    values = [f"{number}-{turn}-{index}" for index in range(3)]
                    assert producer.write(TOPIC, turn % 2, values[0]) == 0
                    assert producer.write(TOPIC, 0, values[1]) == 0
                    assert producer.write(TOPIC, 1, values[2]) == 0
                    if not versions.implicit:
                        assert producer.add_offsets("group") == 0
                    commit = turn % 3 != 1
                    before = producer.pair
                    assert producer.end(commit=commit).error_code == 0
                    assert (producer.pair != before) == (versions.end >= 5)
                    if commit:
                        committed += [(turn % 2, values[0]), (0, values[1]), (1, values[2])]
                producer.completed()
            return committed

        with ThreadPoolExecutor(len(EVERY_VERSION)) as threads:
            expected = list(threads.map(run, range(len(EVERY_VERSION)), EVERY_VERSION))
        for partition in (0, 1):
            seen = committed_values(broker, TOPIC, partition)
            for number, committed in enumerate(expected):
                mine = [value for value in seen if value.startswith(f"{number}-")]
                assert mine == [value for index, value in committed if index == partition], EVERY_VERSION[
                    number
                ]


def test_one_id_passed_from_version_to_version(broker: EmbeddedBroker) -> None:
    """A client is replaced by an older or a newer one, which fences it; the outcome of neither is lost."""
    expected = []
    producers = [
        RawProducer(broker, "passed-on", versions) for versions in (*EVERY_VERSION, *EVERY_VERSION[::-1])
    ]
    former: RawProducer | None = None
    for turn, producer in enumerate(producers):
        producer.find()
        assert producer.init().error_code == 0
        if former is not None:
            fenced = former.end().error_code
            knows = former.versions.end >= 2
            assert fenced == (ErrorCode.PRODUCER_FENCED if knows else ErrorCode.INVALID_PRODUCER_EPOCH)
            former.__exit__()
        assert producer.write(TOPIC, 0, f"kept-{turn}") == 0
        assert producer.end().error_code == 0
        producer.completed()
        assert producer.write(TOPIC, 0, f"left-open-{turn}") == 0
        expected.append(f"kept-{turn}")
        former = producer
    assert former is not None
    assert former.end(commit=False).error_code == 0
    former.completed()
    former.__exit__()
    assert committed_values(broker, TOPIC, 0) == expected


# -------------------------------------------------------------------------------------- levels of the feature


def set_level(broker: EmbeddedBroker, level: int, *, up: bool = False) -> int:
    update = FeatureUpdateKey(
        feature="transaction.version", max_version_level=level, upgrade_type=1 if up else 2
    )
    with RawConnection(broker.bootstrap_servers) as connection:
        request = UpdateFeaturesRequest(feature_updates=(update,))
        return connection.ask(request, UpdateFeaturesResponse, 1).error_code


def test_transactions_go_on_at_every_level(broker: EmbeddedBroker) -> None:
    """Down to 0 and up again with a transaction open each time, over restarts (KAFKA-18227)."""
    expected = []
    older = Versions(init=4, produce=11, end=4)
    with RawProducer(broker, "levels", older) as producer:
        producer.find()
        assert producer.init().error_code == 0
        for turn, (former, level) in enumerate(pairwise((2, 2, 1, 0, 1, 2, 0, 2))):
            assert producer.write(TOPIC, 0, f"{turn}") == 0
            assert set_level(broker, level, up=level > former) == 0
            broker.kill()
            broker.start()
            producer.reconnect()
            assert producer.end().error_code == 0
            producer.completed()
            expected.append(f"{turn}")
            form = 0 if level == 0 else 1
            assert stored_forms(broker, producer.name, PARTITIONS)[-2:] == [form, form]
            if level < 2:
                producer.versions = Versions(init=6)
                assert producer.init(keep=True).error_code == ErrorCode.UNSUPPORTED_VERSION
                assert producer.init(two_phase=True).error_code == ErrorCode.UNSUPPORTED_VERSION
                producer.versions = older
    assert committed_values(broker, TOPIC, 0) == expected


def test_the_level_stays_while_a_transaction_is_in_doubt(broker: EmbeddedBroker) -> None:
    with RawProducer(broker, "in-doubt") as producer:
        producer.find()
        producer.init(two_phase=True)
        token = producer.pair
        assert producer.write(TOPIC, 0, "a") == 0
        assert producer.init(keep=True, two_phase=True).error_code == 0
        assert set_level(broker, 1) == ErrorCode.INVALID_UPDATE_VERSION
        broker.kill()
        broker.start()
        producer.reconnect()
        assert set_level(broker, 0) == ErrorCode.INVALID_UPDATE_VERSION
        described = producer.describe()
        assert (described.producer_id, described.producer_epoch) == token
        assert producer.end().error_code == 0
        producer.completed()
    assert committed_values(broker, TOPIC, 0) == ["a"]


def test_two_phase_commit_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    """The default of the broker, as of Kafka's; an embedded one, which is its owner's alone, has it on."""
    assert not BrokerConfig.parse({}).transaction_two_phase_commit_enable
    settings = {"transaction.two.phase.commit.enable": False}
    with EmbeddedBroker(tmp_path, config=settings) as broker, RawProducer(broker, "t") as producer:
        producer.find()
        refused = producer.init(two_phase=True)
        assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert producer.init(keep=True).error_code == 0
