"""Transcripts of consumer groups: what clients ask, what the log gets, what is answered.

A script is blocks of commands, a line of dashes, and the transcript that follows. To accept
what the machine says now, run `make scripts-rewrite` (TALLYSTICK_REWRITE_SCRIPTS=1) and read the diff.

    join NAME [id=ID|NAME] [instance=I] [offers=a,b] [topics=t,u] [session=MS] [rebalance=MS] [v=N]
    sync NAME [NAME=ASSIGNMENT ...] [gen=N]    heartbeat NAME [gen=N] [instance=I]
    leave NAME|instance=I ...
    commit [NAME] TOPIC-P=OFFSET ... [gen=N]    fetch TOPIC-P ...    delete-offsets TOPIC-P ...
    delete-group    expire    forget TOPIC      wait MS              restart         show
    txn-commit PID/EPOCH NAME|- TOPIC-P=OFFSET ... [gen=N]            end-txn PID/EPOCH commit|abort

`stable=1` fetches stable offsets; `pending=1` deletes what a transaction has open, too.
"""

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.transcripts import Runner, rewritten

from harness.groups import GroupMachineHarness
from tallystick.broker.group.codec import decode_batches
from tallystick.broker.group.machine.commands import (
    CommitOffsets,
    CommitTxnOffsets,
    DeleteGroup,
    DeleteOffsets,
    DeleteTopicOffsets,
    ExpireOffsets,
    GroupAnswer,
    GroupDone,
    Heartbeat,
    JoinGroup,
    JoinGroupResult,
    LeaveGroup,
    LeaveGroupResult,
    LeavingMember,
    MemberIdRequired,
    OffsetPartitionErrors,
    OffsetToCommit,
    SyncGroup,
    SyncGroupResult,
)
from tallystick.broker.group.machine.events import (
    GroupRemoved,
    GroupStored,
    OffsetsCommitted,
    OffsetsDeleted,
    TransactionEnded,
)
from tallystick.broker.group.machine.model import GroupConfig, InstanceId, MemberProtocol, Ticket
from tallystick.broker.group.machine.queries import find_committed_offset
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    GroupId,
    MemberId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)
from tallystick.kernel.value import replace
from tallystick.protocol.records import ControlType

SCRIPTS = sorted((Path(__file__).parent / "group").glob("*.txt"))
GROUP = GroupId("g")


def subscription(topics: list[str]) -> bytes:
    body = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + body + struct.pack(">i", -1)


def partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def identity(text: str) -> ProducerIdAndEpoch:
    producer_id, _, epoch = text.partition("/")
    return ProducerIdAndEpoch(ProducerId(int(producer_id)), ProducerEpoch(int(epoch)))


class Script:
    """Runs command lines against a GroupWorld and writes down what happens."""

    def __init__(self, config: GroupConfig) -> None:
        self.world = GroupMachineHarness(config)
        self.ids: dict[str, MemberId] = {}
        self.names: dict[Ticket, str] = {}
        self.seen_log = 0
        self.seen_answers = 0
        self.lines: list[str] = []

    def run(self, line: str) -> None:
        verb, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        getattr(self, "do_" + verb.replace("-", "_"))(names, options)
        self.report()

    # ---- commands

    def do_join(self, names: list[str], options: dict[str, str]) -> None:
        (name,) = names
        known = options.get("id", self.ids.get(name, ""))
        member_id = MemberId(self.ids.get(known, known)) if known else None
        metadata = subscription(options.get("topics", "t").split(","))
        version = int(options.get("v", "9"))
        ticket = self.world.new_ticket()
        self.names[ticket] = name
        answer = self.world.run(
            GROUP,
            JoinGroup(
                member_id=member_id,
                instance_id=InstanceId(options["instance"]) if "instance" in options else None,
                client_id=name,
                client_host="/127.0.0.1",
                session_timeout_ms=int(options.get("session", "10000")),
                rebalance_timeout_ms=int(options.get("rebalance", "60000")),
                protocol_type=options.get("type", "consumer"),
                protocols=tuple(
                    MemberProtocol(offer, metadata)
                    for offer in options.get("offers", "range").split(",")
                    if offer
                ),
                requires_known_member_id=version >= 4,
                supports_skip_assignment=version >= 9,
                ticket=ticket,
            ),
        )
        if isinstance(answer, MemberIdRequired):
            self.ids[name] = answer.member_id

    def do_sync(self, names: list[str], options: dict[str, str]) -> None:
        (name,) = names
        ticket = self.world.new_ticket()
        self.names[ticket] = name
        generation = self.generation(options)
        self.world.run(
            GROUP,
            SyncGroup(
                member_id=self.ids[name],
                generation=generation,
                protocol_name=options.pop("protocol", None),
                instance_id=InstanceId(options.pop("instance")) if "instance" in options else None,
                assignments={self.ids[to]: given.encode() for to, given in options.items()},
                ticket=ticket,
            ),
        )

    def generation(self, options: dict[str, str]) -> int:
        group = self.world.groups.get(GROUP)
        return int(options.pop("gen", group.generation if group else 0))

    def do_heartbeat(self, names: list[str], options: dict[str, str]) -> None:
        (name,) = names
        instance = InstanceId(options["instance"]) if "instance" in options else None
        beat = Heartbeat(
            member_id=self.ids.get(name, MemberId(name)),
            instance_id=instance,
            generation=self.generation(options),
        )
        self.direct(name, "Heartbeat", self.world.run(GROUP, beat))

    def do_leave(self, names: list[str], options: dict[str, str]) -> None:
        leaving = [LeavingMember(member_id=self.ids.get(name, MemberId(name))) for name in names]
        leaving += [LeavingMember(member_id=None, instance_id=InstanceId(i)) for i in options.values()]
        answer = self.world.run(GROUP, LeaveGroup(members=tuple(leaving)))
        self.direct(" ".join([*names, *options.values()]), "LeaveGroup", answer)

    def do_commit(self, names: list[str], options: dict[str, str]) -> None:
        name = names[0] if names else None
        generation = self.generation(options) if name is not None or "gen" in options else None
        retention = options.pop("retention", None)
        answer = self.world.run(
            GROUP,
            CommitOffsets(
                member_id=None if name is None else self.ids.get(name, MemberId(name)),
                generation=generation,
                retention_ms=None if retention is None else int(retention),
                offsets={partition(p): OffsetToCommit(offset=Offset(int(o))) for p, o in options.items()},
            ),
        )
        self.direct(name or "-", "OffsetCommit", answer)

    def do_txn_commit(self, names: list[str], options: dict[str, str]) -> None:
        producer, name = names
        member = {} if name == "-" else {"member_id": self.ids[name], "generation": self.generation(options)}
        answer = self.world.run(
            GROUP,
            CommitTxnOffsets(
                identity=identity(producer),
                offsets={partition(p): OffsetToCommit(offset=Offset(int(o))) for p, o in options.items()},
                **member,  # type: ignore[arg-type]
            ),
        )
        self.direct(name, "TxnOffsetCommit", answer)

    def do_end_txn(self, names: list[str], options: dict[str, str]) -> None:
        producer, outcome = names
        self.world.end_transaction(identity(producer), ControlType[outcome.upper()])

    def do_fetch(self, names: list[str], options: dict[str, str]) -> None:
        for name in names:
            found = find_committed_offset(
                self.world.groups.get(GROUP),
                partition(name),
                topic_id=None,
                require_stable="stable" in options,
            )
            text = (
                found.code.name
                if isinstance(found, Reject)
                else "none"
                if found is None
                else str(found.offset)
            )
            self.lines.append(f"reply  OffsetFetch {name} {text}")

    def do_delete_offsets(self, names: list[str], options: dict[str, str]) -> None:
        answer = self.world.run(
            GROUP,
            DeleteOffsets(partitions=tuple(map(partition, names)), may_discard_pending="pending" in options),
        )
        self.direct("-", "OffsetDelete", answer)

    def do_forget(self, names: list[str], options: dict[str, str]) -> None:
        self.world.run(GROUP, DeleteTopicOffsets(topics=frozenset(names)))

    def do_delete_group(self, names: list[str], options: dict[str, str]) -> None:
        self.direct(
            "-", "DeleteGroups", self.world.run(GROUP, DeleteGroup(may_discard_pending="pending" in options))
        )

    def do_expire(self, names: list[str], options: dict[str, str]) -> None:
        self.world.run(GROUP, ExpireOffsets())

    def do_wait(self, names: list[str], options: dict[str, str]) -> None:
        self.world.pass_time(int(names[0]))

    def do_restart(self, names: list[str], options: dict[str, str]) -> None:
        self.world.restart()

    def do_show(self, names: list[str], options: dict[str, str]) -> None:
        group = self.world.groups.get(GROUP)
        if group is None:
            self.lines.append("group  none")
            return
        members = " ".join(self.name_of(member_id) for member_id in group.members)
        self.lines.append(f"group  {group.state.value} gen={group.generation} [{members}]")

    # ---- what happened

    def name_of(self, member_id: str | None) -> str:
        return next((name for name, known in self.ids.items() if known == member_id), str(member_id))

    def direct(self, name: str, api: str, answer: GroupAnswer | None) -> None:
        self.lines.append(f"reply  {name} {api} {self.describe(answer)}")

    def report(self) -> None:
        records = [line for batch in self.world.log[self.seen_log :] for line in self.log_lines(batch)]
        self.seen_log = len(self.world.log)
        answers = []
        for ticket, answer in self.world.answers[self.seen_answers :]:
            name = self.names[ticket]
            if isinstance(answer, JoinGroupResult):
                self.ids[name] = answer.member_id
            answers.append(f"reply  {name} {self.describe(answer)}")
        self.seen_answers = len(self.world.answers)
        self.lines[:0] = records
        self.lines += answers

    def log_lines(self, batch: bytes) -> list[str]:
        lines = []
        for entry in decode_batches(batch):
            match entry.event:
                case GroupStored() as stored:
                    members = " ".join(
                        f"{self.name_of(m.member_id)}={m.assignment.decode()}" for m in stored.members
                    )
                    lines.append(f"append group gen={stored.generation} {stored.protocol_name} [{members}]")
                case GroupRemoved():
                    lines.append("append group tombstone")
                case OffsetsCommitted(offsets=offsets, producer_id=producer_id):
                    whose = "" if producer_id is None else f" of producer {producer_id}"
                    lines += [f"append offset {p}={o.offset}{whose}" for p, o in offsets.items()]
                case TransactionEnded(producer_id=producer_id, is_committed=committed):
                    lines.append(f"append {'COMMIT' if committed else 'ABORT'} of producer {producer_id}")
                case OffsetsDeleted(partitions=partitions):
                    lines += [f"append offset {p} tombstone" for p in partitions]
        return lines

    def describe(self, answer: GroupAnswer | None) -> str:
        match answer:
            case None:
                return "parked"
            case Reject(code=code):
                return code.name
            case MemberIdRequired(member_id=member_id):
                return f"JoinGroup MEMBER_ID_REQUIRED {member_id}"
            case JoinGroupResult() as joined:
                members = (
                    f" [{' '.join(self.name_of(m.member_id) for m in joined.members)}]"
                    if joined.members
                    else ""
                )
                skip = " skip-assignment" if joined.skip_assignment else ""
                leader = "leader" if joined.leader_id == joined.member_id else "follower"
                return f"JoinGroup gen={joined.generation} {joined.protocol_name} {leader}{members}{skip}"
            case SyncGroupResult(assignment=assignment):
                return f"SyncGroup {assignment.decode()!r}"
            case GroupDone():
                return "ok"
            case LeaveGroupResult(errors=outcomes):
                return " ".join("ok" if code is None else code.name for code in outcomes)
            case OffsetPartitionErrors(errors=refused):
                return " ".join(f"{p}:{code.name}" for p, code in refused.items()) or "ok"


def runner(settings: Mapping[str, str]) -> Runner:
    script = Script(replace(GroupConfig(), **{name: int(value) for name, value in settings.items()}))

    def run(command: str) -> list[str]:
        script.lines = []
        script.run(command)
        return script.lines

    return run


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
