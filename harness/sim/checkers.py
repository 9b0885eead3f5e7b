"""Checkers: whether clients' answers, readers' records and the disk's content are consistent.

They are independent of the code under test (style R17): they work transactions out from the raw batches by
the plainest rules, and compare them with the broker's own indexes and offsets. The numbers in parentheses are
those of the style's list; I1 to I6 are invariants of the protocol, named where each is checked.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from harness.sim.actors.dual_write import SimDatabase
from harness.sim.history import History, IssuedIdentities, SimTxn
from harness.sim.network import RequestExchange
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.txn.machine.model import ForcedCause, IdlePhase, TxnEntry
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.protocol.records import ControlType, decode_records, iter_headers, read_marker

READ_BYTES = 1 << 20


class LogBatch(Value):
    """A batch in a log: data with its texts, or a marker, whose `commit` tells which kind."""

    first_offset: int
    next_offset: int
    producer: ProducerIdAndEpoch | None
    transactional: bool
    texts: tuple[str, ...] = ()
    commit: bool | None = None


def scan_partition(partition: Partition, *, with_texts: bool = True) -> list[LogBatch]:
    """Return every batch of a partition, decoded from its bytes; for an internal topic without the texts."""
    with_texts = with_texts and not partition.topic_partition.topic.startswith("__")
    batches = []
    for piece in partition.iter_batches(READ_BYTES):
        for at, header in iter_headers(piece):
            marker = read_marker(piece, at) if header.is_control else None
            texts: tuple[str, ...] = ()
            if with_texts and not header.is_control:
                texts = tuple((record.value or b"").decode() for record in decode_records(piece, at))
            signer = None
            if header.producer_id >= 0:
                signer = ProducerIdAndEpoch(
                    ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch)
                )
            commit = None if marker is None else marker.control_type is ControlType.COMMIT
            # Compaction takes the marker out of its batch and keeps the batch for the producer's state: it
            # ends nothing and holds no data.
            is_emptied = header.is_control and marker is None
            transactional = header.is_transactional and not is_emptied
            batches.append(
                LogBatch(header.base_offset, header.next_offset, signer, transactional, texts, commit)
            )
    return batches


@dataclass(slots=True)
class PartitionTransactions:
    """The transactions of one partition, worked out from its batches.

    visible_texts      committed texts, in order
    open_transactions  first offset of each transaction without a marker, by producer id
    markers            each marker, with the writer (producer id and epoch) of the data it ended, if there
                       was any
    """

    visible_texts: list[str] = field(default_factory=list)
    open_transactions: dict[ProducerId, int] = field(default_factory=dict)
    markers: list[tuple[ProducerIdAndEpoch, bool, ProducerIdAndEpoch | None]] = field(default_factory=list)


def decide_transactions(batches: Iterable[LogBatch], upto: int) -> PartitionTransactions:
    """Work transactions out as a KIP-98 reader would, ignoring markers at or above `upto`."""
    result = PartitionTransactions()
    open_batches: dict[ProducerId, list[LogBatch]] = defaultdict(list)
    texts: list[tuple[int, tuple[str, ...]]] = []
    for batch in batches:
        signer = batch.producer
        if batch.commit is None:
            if signer is None or not batch.transactional:
                texts.append((batch.first_offset, batch.texts))
            else:
                open_batches[signer.producer_id].append(batch)
                result.open_transactions.setdefault(signer.producer_id, batch.first_offset)
        elif signer is not None and batch.next_offset <= upto:
            transaction_batches = open_batches.pop(signer.producer_id, [])
            result.open_transactions.pop(signer.producer_id, None)
            result.markers.append(
                (signer, batch.commit, transaction_batches[0].producer if transaction_batches else None)
            )
            if batch.commit:
                texts += [(data.first_offset, data.texts) for data in transaction_batches]
    result.visible_texts = [text for _, some in sorted(texts) for text in some]
    return result


# ---- during the run


def check_stable_offset(partition: Partition) -> Iterator[str]:
    """Yield each open transaction below the last stable offset (3).

    The last stable offset precedes every transaction without a marker that a power loss cannot remove. If the
    transaction's first records are deleted, it counts from the log start offset (Kafka:
    maybeIncrementFirstUnstableOffset).
    """
    high_watermark, stable = partition.log.reader.high_watermark, partition.log.reader.last_stable_offset
    log_start = partition.log.log_start_offset
    for producer_id, first_offset in decide_transactions(
        scan_partition(partition, with_texts=False), high_watermark
    ).open_transactions.items():
        if max(first_offset, log_start) < stable:
            yield (
                f"{partition.topic_partition}: stable up to {stable}, producer {producer_id} has been open "
                f"since {first_offset} (high watermark {high_watermark})"
            )


def check_producer_id(history: History, exchange: RequestExchange, *, forgets: bool = False) -> None:
    """Check that a returned producer id and epoch are new and follow the newest: (4), I2, I5.

    A client that repeats its request may get the newest ones again; a client with an earlier epoch gets none.

    Args:
        history: receives the violations.
        exchange: an InitProducerId or EndTxn exchange; others are ignored.
        forgets: ids expire while they are used; a client that returns then counts as new.
    """
    request, response = exchange.request, exchange.response
    if not isinstance(response, InitProducerIdResponse | EndTxnResponse) or response.error_code:
        return
    if not isinstance(request, InitProducerIdRequest | EndTxnRequest) or response.producer_id < 0:
        return
    owner = request.transactional_id or ""
    pair = ProducerIdAndEpoch(ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch))
    identities = history.issued_identities.setdefault(owner, IssuedIdentities())
    requester = ProducerIdAndEpoch(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
    claims_anew = request.producer_id < 0
    if claims_anew:
        # A power loss under `os` may take back that it was given: two incarnations have it then, and a late
        # request of the first one is taken for the second's.
        if pair in history.claimed_identities:
            history.reused_identities.add(pair)
        history.claimed_identities.add(pair)
    newest = identities.newest
    exchange_text = f"{owner}: {exchange.api.name} by {requester} is answered {pair}"
    is_stranger = pair.producer_id not in identities.producer_ids and forgets
    if identities.before is not None and not (
        claims_anew or is_stranger or requester in (newest, identities.before)
    ):
        history.report(f"{exchange_text}, though {newest} came after {identities.before} and it")  # I5
    if newest == pair:
        if claims_anew or requester == newest:
            history.report(f"{exchange_text}, which was handed out before")
        return
    if newest is not None and pair.producer_id == newest.producer_id:
        if pair.epoch < newest.epoch:
            history.report(f"{exchange_text} after {newest}")
    elif pair.producer_id in identities.producer_ids:
        history.report(f"{exchange_text}, a producer id from before {newest}")
    identities.before, identities.newest = requester if is_stranger and not claims_anew else newest, pair
    identities.producer_ids.add(pair.producer_id)


def check_answer(history: History, exchange: RequestExchange) -> None:
    """Check that the answer is not UNKNOWN_SERVER_ERROR: the broker must handle these clients."""
    code = getattr(exchange.response, "error_code", 0)
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:
        history.report(f"{exchange.api.name} v{exchange.version}: UNKNOWN_SERVER_ERROR")


# ---- at the end


def check_texts(
    batches: Mapping[TopicPartition, Sequence[LogBatch]], exceptions: AbstractSet[str] = frozenset()
) -> Iterator[str]:
    """Yield each record that is in the logs twice, committed or not (6).

    Args:
        batches: the batches of each partition.
        exceptions: texts of transactions that an administrator ended in a partition. A batch repeated
            afterwards is not part of the open transaction, and counts as new if its producer has expired.
    """
    counts = Counter(
        text for partition_batches in batches.values() for batch in partition_batches for text in batch.texts
    )
    for text, count in counts.items():
        if count > 1 and text not in exceptions:
            yield f"record {text} is there {count} times"


def check_atomic(history: History, visible: Mapping[TopicPartition, Sequence[str]]) -> Iterator[str]:
    """Yield each transaction that is visible in part, or differently from what its clients were told (1)."""
    where = {text: partition for partition, texts in visible.items() for text in texts}
    for txn in history.guaranteed_txns():
        visible_texts = txn.records.keys() & where.keys()
        for text in sorted(visible_texts):
            if where[text] != txn.records[text]:
                yield f"{txn}: {text} was sent to {txn.records[text]} and is in {where[text]}"
        if txn.reported_outcome is True or (
            txn.commit_requested and txn.reported_outcome is None and visible_texts
        ):
            missing_texts = sorted(history.required_texts(txn) - visible_texts)
            if missing_texts:
                outcome = "committed" if txn.reported_outcome else "in part there"
                yield f"{txn} is {outcome}; missing: {missing_texts}, there: {sorted(visible_texts)}"
        elif visible_texts:
            why = "was aborted" if txn.reported_outcome is False else "was never committed"
            yield f"{txn} {why}, yet visible: {sorted(visible_texts)}"


def check_aborted(history: History, visible: Mapping[TopicPartition, Sequence[str]]) -> Iterator[str]:
    """Yield each aborted transaction that is visible, on a disk that may lose what was acknowledged (1).

    Only version 2 is checked: before it, a producer epoch names many transactions, and a marker that is
    written again may end a later one.
    """
    texts = {text for partition_texts in visible.values() for text in partition_texts}
    for txn in history.txns:
        visible_texts = sorted(txn.records.keys() & texts)
        if (
            visible_texts
            and not txn.commit_requested
            and txn.version >= 2
            and txn.writer not in history.reused_identities
        ):
            yield f"{txn} was never committed, yet visible: {visible_texts}"


def check_deleted(history: History, visible: Mapping[TopicPartition, Sequence[str]]) -> Iterator[str]:
    """Yield each record that is visible though its deletion was confirmed (8)."""
    for partition, texts in visible.items():
        for text in texts:
            if text in history.deleted_texts:
                yield f"{partition}: {text} was deleted, and is there again"


def check_order(history: History, visible: Mapping[TopicPartition, Sequence[str]]) -> Iterator[str]:
    """Yield each record that is out of its client's sending order in a partition.

    A late request of a transaction may be taken for one of a later transaction with the same identity, where
    a disk has lost that the identity was given.
    """
    sent_again = {
        text for txn in history.txns if txn.writer in history.reused_identities for text in txn.records
    }
    for partition, texts in visible.items():
        last: dict[str, tuple[int, int]] = {}
        for text in texts:
            if text in sent_again:
                continue
            owner, number, index = text.split(":")
            place = (int(number), int(index))
            if place < last.get(owner, place):
                yield f"{partition}: {text} comes after {last[owner]} of the same client"
            last[owner] = place


def check_markers(
    history: History,
    decisions: Mapping[TopicPartition, PartitionTransactions],
    hanging: AbstractSet[tuple[TopicPartition, ProducerId]],
) -> Iterator[str]:
    """Yield each transaction that violates I1 or I3.

    I1: a transaction is decided once. I3: its markers carry the next epoch, in every partition.

    Args:
        history: the transactions by their writer.
        decisions: the decisions of each partition.
        hanging: hanging transactions that a start listed; a marker that ends one belongs to another
            transaction.
    """
    outcomes: dict[ProducerIdAndEpoch, tuple[bool, TopicPartition]] = {}
    for partition, transactions in decisions.items():
        for signer, commit, writer in transactions.markers:
            txn = None if writer is None else history.by_writer.get(writer)
            if txn is None or writer is None or writer in history.reused_identities:
                continue
            if (partition, writer.producer_id) in hanging or writer in history.partly_aborted:
                continue
            # KIP-890: in version 2 a marker carries the epoch after that of the data it ends.
            if signer != ProducerIdAndEpoch(writer.producer_id, ProducerEpoch(writer.epoch + 1)):
                yield f"{partition}: {txn} was ended by a marker of {signer}"
            first_outcome, where = outcomes.setdefault(writer, (commit, partition))
            if first_outcome != commit:
                yield (
                    f"{txn}: {_outcome_text(first_outcome)} in {where}, "
                    f"{_outcome_text(commit)} in {partition}"
                )


def _outcome_text(commit: bool) -> str:
    return "committed" if commit else "aborted"


def check_database(
    history: History,
    database: SimDatabase,
    visible: Mapping[TopicPartition, Sequence[str]],
    forced_causes: Mapping[ProducerIdAndEpoch, ForcedCause],
) -> Iterator[str]:
    """Yield each difference between the database's transactions and the log's (2).

    A forced outcome excuses a difference, if the coordinator reports it.

    Args:
        history: the transactions, as their clients know them.
        database: the rows with the committed numbers.
        visible: the visible texts of each partition.
        forced: the outcomes that the coordinator reported while it knew the id.
    """
    texts = {text for partition_texts in visible.values() for text in partition_texts}
    for txn in history.guaranteed_txns():
        row = database.rows.get(txn.owner)
        if row is None or not txn.records:
            continue
        in_log, in_row = not txn.records.keys().isdisjoint(texts), txn.number in row.committed_numbers
        if in_log and not in_row:
            yield f"{txn} is in the log, and its database never decided it"
        must_be_in_log = history.required_texts(txn) or not (history.may_be_deleted or txn.aborted_partitions)
        if (
            in_row
            and not in_log
            and must_be_in_log
            and (txn.writer is None or txn.writer not in forced_causes)
        ):
            yield f"{txn} is in the database and not in the log, and no forced outcome says why"
    for writer, cause in forced_causes.items():
        txn_of_writer = history.by_writer.get(writer)
        if txn_of_writer is not None and txn_of_writer.two_phase and cause is ForcedCause.TIMED_OUT:
            yield f"I6: {txn_of_writer} never times out, yet it did"


def check_entries(
    entries: Sequence[TxnEntry],
    partitions: Mapping[TopicPartition, PartitionTransactions],
    hanging: AbstractSet[tuple[TopicPartition, ProducerId]],
) -> Iterator[str]:
    """Yield each transaction still open after every client has recovered: (7), I4.

    Checks the coordinator's entries and the partitions.

    Args:
        entries: the coordinator's entries.
        partitions: the decisions of each partition.
        hanging: hanging transactions that a start listed.
    """
    for entry in entries:
        if not isinstance(entry.phase, IdlePhase):
            yield f"{entry.transactional_id} is {entry.state.label} when everything is over"
    for partition, transactions in partitions.items():
        for producer_id, first_offset in transactions.open_transactions.items():
            if (partition, producer_id) in hanging:
                continue
            yield f"{partition}: producer {producer_id} is open since {first_offset} when everything is over"


def check_offset(history: History, owner: str, committed_number: int | None) -> Iterator[str]:
    """Check that a group's offset is that of its owner's last committed transaction with an offset (1).

    Args:
        history: the transactions, as their clients know them.
        owner: the transactional id; each has a group of its own.
        committed: number of the transaction whose offset the group has.
    """
    certain: list[SimTxn] = []
    possible: set[int] = set()
    for txn in history.txns:
        if txn.owner != owner or txn.offset is None:
            continue
        if txn.reported_outcome is True and txn.offset_acknowledged:
            certain.append(txn)
            possible.clear()
        elif txn.commit_requested and txn.reported_outcome is None:
            possible.add(txn.number)
    last_number = certain[-1].number if certain else None
    if committed_number != last_number and committed_number not in possible:
        alternatives = f", or one of {sorted(possible)}" if possible else ""
        expectation = f"{last_number}{alternatives}"
        yield f"{owner}: its group has the offset of transaction {committed_number}, not {expectation}"


TRANSACTION_END_APIS = frozenset({ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN})
