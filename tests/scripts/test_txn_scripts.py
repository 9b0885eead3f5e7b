"""Transcripts of transactional ids: what clients ask, what the log gets, which markers go out, what is
answered.

A script is blocks of commands, a line of dashes, and the transcript that follows. To accept what the machine
says now, run `make scripts-rewrite` (TALLYSTICK_REWRITE_SCRIPTS=1) and read the diff. A pair is written 42/0;
`as` is whom the client takes itself for, if not whom it was told last.

given ID PAIR [writer=PAIR] an id that has come this far; with `writer`, in a kept transaction init ID
[as=PAIR] [keep] [2pc] [timeout=MS] begin ID PARTITION ... [as=PAIR] [v=0] write ID PARTITION ... [as=PAIR]
verify ID PARTITION ... [as=PAIR] end ID commit|abort [as=PAIR] [v=0] [drop-reply] marker-done PARTITION ...
gone PARTITION ... forced-marker ID PARTITION as=PAIR wait MS restart show ID"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import assert_never

import pytest
from tests.support.transcripts import Runner, rewritten

from harness.transactions import TxnMachineHarness
from tallystick.broker.txn.codec import decode_batches
from tallystick.broker.txn.machine.commands import (
    AddPartitions,
    AddPartitionsByLeader,
    EndTxn,
    EndTxnResult,
    EntryRemoved,
    EntryStored,
    InitProducerId,
    InitProducerIdResult,
    RecordForcedMarker,
    TxnAnswer,
    TxnCommand,
    TxnDone,
    TxnRecord,
    VerifyPartitions,
    VerifyPartitionsResult,
)
from tallystick.broker.txn.machine.model import (
    DecidedPhase,
    IdlePhase,
    OngoingPhase,
    TransactionResult,
    TxnConfig,
    TxnEntry,
)
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import replace

SCRIPTS = sorted((Path(__file__).parent / "txn").glob("*.txt"))
TIMEOUT_MS = 60_000


def pair(text: str) -> ProducerIdAndEpoch:
    producer_id, _, epoch = text.partition("/")
    return ProducerIdAndEpoch(ProducerId(int(producer_id)), ProducerEpoch(int(epoch)))


def partitions(words: list[str]) -> frozenset[TopicPartition]:
    split = [word.rpartition("-") for word in words]
    return frozenset(TopicPartition(topic, int(number)) for topic, _, number in split)


def listed(of: frozenset[TopicPartition]) -> str:
    return " ".join(map(str, sorted(of)))


class Script:
    """Runs command lines against a TxnWorld and writes down what happens."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        config = TxnConfig(
            transaction_two_phase_commit_enable=True,
            transaction_version=int(settings.get("transaction_version", "2")),
        )
        spares = [int(spare) for spare in settings.get("spares", "42,73,85,99").split(",")]
        self.world = TxnMachineHarness(config, spares)
        self.told: dict[TransactionalId, ProducerIdAndEpoch] = {}
        self.seen_log = 0
        self.seen_sent = 0
        self.lines: list[str] = []

    def run(self, line: str) -> list[str]:
        self.lines = []
        verb, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        getattr(self, "do_" + verb.replace("-", "_"))(names, options)
        return [*self.happened(), *self.lines]

    # ---- commands

    def do_given(self, names: list[str], options: dict[str, str]) -> None:
        name, client = TransactionalId(names[0]), pair(names[1])
        entry = self.world.entries.get(name)
        if entry is None:
            entry = TxnEntry(
                transactional_id=name,
                phase=IdlePhase(),
                client=client,
                previous_identity=None,
                timeout_ms=TIMEOUT_MS,
                transaction_version=self.world.config.transaction_version,
                updated_ms=self.world.now_ms(),
            )
        self.world.insert_entry(replace(entry, client=client))
        self.told[name] = client

    def do_init(self, names: list[str], options: dict[str, str]) -> None:
        name, *flags = names
        self.ask(
            name,
            InitProducerId(
                timeout_ms=int(options.get("timeout", TIMEOUT_MS)),
                expected_identity=pair(options["as"]) if "as" in options else None,
                enable_2pc="2pc" in flags,
                keep_prepared="keep" in flags,
            ),
        )

    def do_begin(self, names: list[str], options: dict[str, str]) -> None:
        name, *to = names
        version = int(options.get("v", "2"))
        command = AddPartitions(
            identity=self.speaker(name, options), partitions=partitions(to), transaction_version=version
        )
        self.ask(name, command)

    def do_write(self, names: list[str], options: dict[str, str]) -> None:
        name, *to = names
        self.ask(name, AddPartitionsByLeader(identity=self.speaker(name, options), partitions=partitions(to)))

    def do_verify(self, names: list[str], options: dict[str, str]) -> None:
        name, *to = names
        self.ask(name, VerifyPartitions(identity=self.speaker(name, options), partitions=partitions(to)))

    def do_end(self, names: list[str], options: dict[str, str]) -> None:
        name, outcome, *flags = names
        command = EndTxn(
            identity=self.speaker(name, options),
            outcome=TransactionResult(outcome),
            transaction_version=int(options.get("v", "2")),
        )
        self.ask(name, command, dropped="drop-reply" in flags)

    def do_marker_done(self, names: list[str], options: dict[str, str]) -> None:
        self.mark(partitions(names), frozenset())

    def do_gone(self, names: list[str], options: dict[str, str]) -> None:
        self.mark(partitions(names), partitions(names))

    def mark(self, reached: frozenset[TopicPartition], gone: frozenset[TopicPartition]) -> None:
        for name, send in list(self.world.pending_markers.items()):
            if reached & send.partitions:
                self.world.write_markers(name, only=reached & send.partitions, deleted_partitions=gone)

    def do_forced_marker(self, names: list[str], options: dict[str, str]) -> None:
        name, at = names
        (partition,) = partitions([at])
        self.world.run(
            TransactionalId(name), RecordForcedMarker(writer=pair(options["as"]), partition=partition)
        )

    def do_wait(self, names: list[str], options: dict[str, str]) -> None:
        self.world.pass_time(int(names[0]))

    def do_restart(self, names: list[str], options: dict[str, str]) -> None:
        self.world.restart()

    def do_show(self, names: list[str], options: dict[str, str]) -> None:
        entry = self.world.entries.get(TransactionalId(names[0]))
        shown = "unknown" if entry is None else f"{entry.state.label} {entry.described_identity}"
        self.lines.append(f"show   {names[0]} {shown}")
        for note in entry.forced_outcomes if entry else ():
            at = f" in {note.partition}" if note.partition else ""
            self.lines.append(f"       {note.writer} was ended: {note.cause.name}{at}")

    # ---- asking and answering

    def speaker(self, name: str, options: dict[str, str]) -> ProducerIdAndEpoch:
        return pair(options["as"]) if "as" in options else self.told[TransactionalId(name)]

    def ask(self, name: str, command: TxnCommand, dropped: bool = False) -> None:
        transactional_id = TransactionalId(name)
        answer = self.world.run(transactional_id, command)
        api = "Write" if isinstance(command, AddPartitionsByLeader) else type(command).__name__
        if dropped:
            self.lines.append(f"drop   {api} reply {described(answer)}")
            return
        self.lines.append(f"reply  {api} {described(answer)}")
        if isinstance(answer, InitProducerIdResult | EndTxnResult):
            self.told[transactional_id] = answer.client

    def happened(self) -> list[str]:
        """What the log got and which markers were sent since the last look."""
        batches, self.seen_log = self.world.log[self.seen_log :], len(self.world.log)
        sent, self.seen_sent = self.world.sent_markers[self.seen_sent :], len(self.world.sent_markers)
        return [
            *[f"append {stored(record)}" for batch in batches for record in decode_batches(batch)],
            *[f"send   marker {s.outcome.name} {s.marker_identity} -> {listed(s.partitions)}" for s in sent],
        ]


def stored(record: TxnRecord) -> str:
    if isinstance(record, EntryRemoved):
        return f"{record.transactional_id} tombstone"
    assert isinstance(record, EntryStored)
    entry = record.entry
    told = f"{entry.transactional_id} {entry.state.label}"
    match entry.phase:
        case IdlePhase():
            return f"{told} client={entry.client}"
        case OngoingPhase(writer=writer, partitions=open_in):
            client = f" client={entry.client}" if entry.is_kept else ""
            never = " no-timeout" if entry.is_two_phase else ""
            return f"{told} writer={writer}{client} [{listed(open_in)}]{never}"
        case DecidedPhase(marker_identity=marker):
            return f"{told} marker={marker} client={entry.client}"
        case _:
            assert_never(entry.phase)


def described(answer: TxnAnswer) -> str:
    match answer:
        case Reject(code=code):
            return code.name
        case InitProducerIdResult(client=client, ongoing_identity=ongoing):
            return f"{client}" if ongoing is None else f"{client} ongoing={ongoing}"
        case EndTxnResult(client=client):
            return str(client)
        case VerifyPartitionsResult(errors=refused):
            return " ".join(f"{p}:{code.name}" for p, code in sorted(refused.items())) or "ok"
        case TxnDone():
            return "ok"
        case _:
            assert_never(answer)


def runner(settings: Mapping[str, str]) -> Runner:
    return Script(settings).run


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text()
    now = rewritten(text, runner)
    if os.environ.get("TALLYSTICK_REWRITE_SCRIPTS"):
        path.write_text(now)
    else:
        assert now == text


def test_there_are_scripts() -> None:
    assert SCRIPTS
