"""Apache Kafka's own code reads our transaction log: what was kept, rotated and ended by force included.

A decoder that knows nothing above tag 2 must still be able to finish every transaction (KIP-939).
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tools.servers import apache_kafka

from tallystick.broker.txn.codec import decode_record, encode_batch_of, encode_record
from tallystick.broker.txn.machine.commands import EntryRemoved, EntryStored, TxnRecord
from tallystick.broker.txn.machine.model import (
    DecidedPhase,
    ForcedCause,
    IdlePhase,
    OngoingPhase,
    TransactionResult,
    TxnEntry,
    TxnForcedOutcome,
)
from tallystick.broker.txn.machine.producer_epochs import derive_marker_identity
from tallystick.kernel.ids import (
    INT16_MAX,
    INT32_MAX,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import replace
from tallystick.protocol import decode_prefix, encode
from tallystick.protocol.messages.txn.stored_transactions import TransactionLogValue
from tallystick.protocol.records import patch_offset_and_epoch

ORACLE = Path(__file__).parents[2] / "vectors" / "stored_transactions" / "KafkaTransactionLog.java"
NOW = TimestampMs(1_700_000_000_000)
ORDERS_0, ORDERS_3 = TopicPartition("orders", 0), TopicPartition("orders", 3)


def ident(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


WRITER, KEEPER, NEXT = ident(42, INT16_MAX - 1), ident(73, INT16_MAX), ident(85, 0)
FORCED = (
    TxnForcedOutcome(writer=ident(42, 3), cause=ForcedCause.TERMINATED, at_ms=NOW),
    TxnForcedOutcome(writer=ident(42, 5), cause=ForcedCause.MARKER, at_ms=NOW, partition=ORDERS_3),
)


def entry(
    name: str, phase: OngoingPhase | DecidedPhase | IdlePhase, client: ProducerIdAndEpoch, **more: Any
) -> TxnEntry:
    stands = TxnEntry(
        transactional_id=TransactionalId(name),
        phase=phase,
        client=client,
        previous_identity=None,
        timeout_ms=60_000,
        transaction_version=2,
        updated_ms=NOW,
    )
    return replace(stands, **more)


OPEN = OngoingPhase(
    writer=WRITER, partitions=frozenset({ORDERS_0, ORDERS_3}), started_ms=NOW, timeout_ms=None
)
ENDED = DecidedPhase(
    outcome=TransactionResult.COMMIT,
    marker_identity=derive_marker_identity(WRITER),
    partitions=frozenset({ORDERS_0, ORDERS_3}),
    started_ms=NOW,
    timeout_ms=60_000,
)
DONE = IdlePhase(outcome=TransactionResult.COMMIT, started_ms=NOW, marker_offsets={ORDERS_0: Offset(17)})
ENTRIES = {
    "plain": entry("plain", replace(OPEN, writer=ident(42, 7), timeout_ms=60_000), ident(42, 7)),
    "kept": entry("kept", OPEN, KEEPER, previous_identity=ident(73, 4), forced_outcomes=FORCED),
    "kept-in-place": entry(
        "kept-in-place", replace(OPEN, writer=ident(42, 7)), ident(42, 9), timeout_ms=None
    ),
    "rotated": entry("rotated", ENDED, NEXT, previous_identity=KEEPER, forced_outcomes=FORCED),
    "complete": entry("complete", DONE, NEXT, previous_identity=KEEPER, forced_outcomes=FORCED),
    "empty": entry("empty", IdlePhase(), NEXT, timeout_ms=None),
}


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segment with all of them, and a tombstone."""
    records: list[TxnRecord] = [EntryStored(entry=stands) for stands in ENTRIES.values()]
    records.append(EntryRemoved(transactional_id=TransactionalId("gone")))
    file = tmp_path_factory.mktemp("__transaction_state-0") / f"{0:020}.log"
    with file.open("wb") as out:
        for offset, record in enumerate(records):
            batch = bytearray(encode_batch_of([record], NOW, 2))
            patch_offset_and_epoch(batch, 0, offset, 0)
            out.write(batch)
    return file


def expected(stored: TxnEntry) -> dict[str, Any]:
    """What the tool shows of an entry: KIP-939's fields, no private ones."""
    phase, shown = stored.phase, stored.described_identity
    fields: dict[str, Any] = {
        "producerId": shown.producer_id,
        "producerEpoch": shown.epoch,
        "transactionStatus": stored.state,
        "clientTransactionVersion": 2,
    }
    if stored.client != shown:
        fields |= {"nextProducerId": stored.client.producer_id, "nextProducerEpoch": stored.client.epoch}
    if stored.previous_identity is not None and not isinstance(phase, OngoingPhase):
        fields["previousProducerId"] = stored.previous_identity.producer_id
    timeout_ms = stored.timeout_ms if isinstance(phase, IdlePhase) else phase.timeout_ms
    fields["transactionTimeoutMs"] = INT32_MAX if timeout_ms is None else timeout_ms
    open_ = [{"topic": "orders", "partitionIds": [0, 3]}]
    empty: list[str] | None = None if stored.state.label == "Empty" else []
    fields["transactionPartitions"] = empty if isinstance(phase, IdlePhase) else open_
    fields["transactionLastUpdateTimestampMs"] = NOW
    fields["transactionStartTimestampMs"] = -1 if phase.started_ms is None else phase.started_ms
    return fields


@pytest.mark.gate(0)
def test_dump_log_decodes_every_record(java: Any, segment: Path) -> None:
    printed = java.tool(
        "kafka-dump-log", "--files", str(segment), "--transaction-log-decoder", "--deep-iteration"
    )
    assert "isvalid: false" not in printed
    found = re.findall(r"key: (\{.*\}) payload: (.*)$", printed, re.MULTILINE)
    decoded = {json.loads(key)["data"]["transactionalId"]: payload for key, payload in found}
    assert decoded.pop("gone") == "<DELETE>"
    for name, stored in ENTRIES.items():
        value = json.loads(decoded.pop(name))
        status = value["data"]["transactionStatus"]  # a number before Kafka 4.4
        assert status in (stored.state, stored.state.label)
        value["data"]["transactionStatus"] = stored.state
        assert value == {"version": "1", "data": expected(stored)}
    assert not decoded


def without_tags_from_3(value: bytes) -> bytes:
    read, _ = decode_prefix(TransactionLogValue, value, 1, 2)
    older = replace(
        read,
        next_producer_epoch=-1,
        superseded=None,
        forced_outcomes=(),
        next_transaction_timeout_ms=-1,
        marker_offsets=(),
    )
    return value[:2] + encode(older, 1)


@pytest.mark.kafka
def test_a_broker_without_kip_939_finishes_every_transaction() -> None:
    """Kafka's classes read the recorded pair, and mark what is open with the epoch after it.

    KIP-939: "ProducerId and ProducerEpoch" are those of the ongoing transaction, also while it is kept.
    """
    if lack := apache_kafka.find_missing():
        pytest.skip(lack)
    lines, names = [], []
    for name, stored in ENTRIES.items():
        key, value = encode_record(EntryStored(entry=stored), 2)
        assert value is not None
        assert decode_record(key, value) == EntryStored(entry=stored)
        for each in (value, without_tags_from_3(value)):
            lines.append(f"{key.hex()} {each.hex()}\n")
            names.append(name)
    read = subprocess.run(
        apache_kafka.make_java_command(str(ORACLE), "read"),
        input="".join(lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.splitlines()
    assert len(read) == len(names)
    for name, line in zip(names, read, strict=True):
        stored = ENTRIES[name]
        state, pair, _, _, timeout, _, version, _, marked = line.split()
        assert (state, pair, version) == (stored.state.label, str(stored.described_identity), "2")
        assert marked == (
            str(derive_marker_identity(stored.described_identity))
            if isinstance(stored.phase, OngoingPhase)
            else "-"
        )
        assert timeout == str(expected(stored)["transactionTimeoutMs"])
