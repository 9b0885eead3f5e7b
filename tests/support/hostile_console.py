"""Texts that mean harm to a screen, and a state of the console in which every name is one of them."""

from typing import Final

from tests.support.console_facts import (
    NOW_MS,
    ORDERS,
    SERVERS,
    WRITER,
    describe,
    make_case,
    make_prefix,
    make_row,
    make_snapshot,
    make_store,
    pair,
    read_again,
)

from tallystick.admin.model import GroupDescription, MemberDescription
from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.client.net.metadata import Node
from tallystick.console.actions.config import ActionConfig
from tallystick.console.actions.readings import Reading, TransactionReading
from tallystick.console.actions.request import ActionRequest
from tallystick.console.actions.results import report_unknown
from tallystick.console.actions.service import ActionService
from tallystick.console.lookup.history import HistorySource, IdHistory
from tallystick.console.model.snapshot import (
    ClusterFacts,
    GroupFacts,
    GroupOffset,
    PartitionOffsets,
    PartStatus,
    PrefixFacts,
    ServerPreparedTransaction,
    Snapshot,
    StoreFacts,
    TopicFacts,
)
from tallystick.console.model.state import ConsoleState, advance
from tallystick.dualwrite.rules.leases import LeaseRow
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.transaction_history import TransactionTransition, TransitionKind
from tallystick.spark.protocol.committable import JobChecksums, Participant, RowChecksum
from tallystick.testing import FakeClock

HARMLESS: Final = "pay-harmless"
HOSTILE: Final = {
    "colours and a blink": "pay\x1b[5;31mPWN\x1b[2J\x1b[1;1H",
    "a link that hides its address (OSC 8)": "\x1b]8;;http://evil.example\x1b\\pay\x1b]8;;\x1b\\",
    "the clipboard (OSC 52) and the title (OSC 0)": "\x1b]52;c;cHdu\x07\x1b]0;PWN\x07",
    "a device control string": "\x1bP+q436f\x1b\\",
    "controls of eight bits": "\x9b5mPWN\x9d0;PWN\x9c",
    "the direction of writing": "pay-\u202etiderc\u2066x\u2069",
    "line feeds that make a row": "pay\r\n> ok  pay-2\n\u2028\x0b\x0cend",
    "wide characters": "口座振替-" * 40,
    "combining marks": "pay" + "\u0301\u0489" * 30,
    "nothing to see": "pay\u200b-\ufeff1\u00ad\u2060\u115f\U000e0041",
    "markup of Rich and Textual": "[bold red]x[/] [link=http://evil]y[/link] [@click=app.bell]z[/] \\[b]",
    "markup of a page": "<script>alert(1)</script><img src=x onerror=y>&\"'{{ 7 * 7 }}",
    "a path": "/../..//?a=b#c%2e%00",
    "a command": "$(touch x)`touch x`;'\"\\",
    "ten kilobytes": "k" * 10_000 + "-end",
    "a nul and a backspace": "pay\x00\x08\x7f1",
}


def make_hostile_snapshot(name: str) -> Snapshot:
    """Return a snapshot with something on every page, all of it named by others."""
    worker, topic = f"loud/w/{'a' * 16}/0", TopicPartition(name, 0)
    known = describe(name, writer=WRITER, age_ms=185_000, partitions=(ORDERS, topic))
    snapshot = make_snapshot(
        known,
        describe(f"{name}-2", writer=pair(14, 0), age_ms=1_800_000),
        describe(worker, writer=pair(12, 0)),
        cases=[
            make_case(HangingFinding.TWO_PHASE, known),
            make_case(
                HangingFinding.UNKNOWN_PRODUCER_ID,
                None,
                pair(77, 0),
                partition=topic,
                verdict=HangingVerdict.HANGING,
            ),
        ],
        stores=[make_hostile_store(name), make_store(name=f"{name}-away", failures=(f"{name}: away",))],
        prefixes=[make_hostile_prefix(name, worker)],
        failures=(f"{name}: it did not answer",),
    )
    status = PartStatus(read_ms=NOW_MS - 100)
    broker = Node(id=1, address=(name, 9092))
    return replace(
        snapshot,
        cluster=ClusterFacts(
            status=replace(status, failures=(f"features: {name}",)),
            cluster_id=name,
            brokers=(broker,),
            features={name: 1},
        ),
        topics=TopicFacts(
            status=status,
            partition_counts={"orders": 1, name: 1},
            offsets={
                ORDERS: PartitionOffsets(start=0, last_stable=10, end=25),
                topic: PartitionOffsets(start=0, last_stable=1, end=2),
            },
        ),
        groups=make_hostile_groups(name, status),
    )


def make_hostile_store(name: str) -> StoreFacts:
    row = replace(make_row(name, state=WRITER), owner=name, cluster_id=name)
    lease = LeaseRow(transactional_id=name, base=name, number=1, holder=name, holder_info=name)
    prepared = ServerPreparedTransaction(gid=name, owner=name, database=name, prepared_ms=NOW_MS - 5)
    store = make_store(row, make_row(f"{name}-2"), name=name, leases=(lease,))
    return replace(store, engine=name, opened_by=name, server_prepared=(prepared,))


def make_hostile_prefix(name: str, worker: str) -> PrefixFacts:
    facts = make_prefix("loud", Participant(transactional_id=worker, identity=pair(12, 0)), source=name)
    assert facts.decision is not None
    decision = replace(
        facts.decision,
        query_id=name,
        offsets=name,
        mode=name,
        writes=(JobChecksums(name, (RowChecksum(3, 0),)),),
    )
    return replace(facts, decision=decision)


def make_hostile_groups(name: str, status: PartStatus) -> GroupFacts:
    member = MemberDescription(
        member_id=name, instance_id=name, client_id=name, host=name, partitions=frozenset({ORDERS})
    )
    group = GroupDescription(
        group_id=name, coordinator=1, state=name, type=name, assignor=name, members=(member,)
    )
    offset = GroupOffset(committed=4, data_lag=5, passed_markers=1, passed_aborted=2, is_pending=True)
    at = {ORDERS: offset, TopicPartition(name, 0): offset}
    return GroupFacts(status=status, groups={name: group}, offsets={name: at})


def make_hostile_state(name: str) -> ConsoleState:
    """Return the state after two looks at the snapshot."""
    snapshot = make_hostile_snapshot(name)
    return advance(advance(ConsoleState(), snapshot), read_again(snapshot))


class HostileAnswers:
    """Tells a history and records in which every text is one that means harm."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def read_history(self, transactional_id: str) -> IdHistory:
        transition = TransactionTransition(
            transactional_id=transactional_id,
            kind=TransitionKind.BEGUN,
            at_ms=NOW_MS,
            state=self._name,
            producer=WRITER,
            partition_count=1,
            client_id=self._name,
            address=self._name,
        )
        return IdHistory(source=HistorySource.BROKER, transitions=(transition,), failure=self._name)


class HostileReadings:
    """What is true of an id whose name, store and row mean harm."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def read(self, request: ActionRequest) -> Reading:
        name = self._name
        snapshot = make_snapshot(
            describe(name, writer=WRITER, age_ms=185_000, partitions=(TopicPartition(name, 0),)),
            stores=[
                make_hostile_store(name),
                make_store(name=f"{name}-away", failures=(f"{name}: away",), read_ms=0),
            ],
        )
        cluster = replace(snapshot.cluster, cluster_id=name)
        return TransactionReading(snapshot=replace(snapshot, cluster=cluster), transactional_id=name)

    async def close(self) -> None:
        pass


def make_hostile_actions(name: str) -> ActionService:
    """Return a service whose every reading and result is a text that means harm."""
    settings = {"bootstrap.servers": SERVERS}
    return ActionService(
        ActionConfig(admin=settings, producer=settings),
        clock=FakeClock(NOW_MS),
        reader=HostileReadings(name),
        act=lambda _, __, ___, plan: report_unknown(name, plan),
    )
