"""A client that crashes and is replaced, its database, the coordinator: whatever happens, both halves agree.

Both machines are the real ones. The database is the plainest model: a token that it committed, and a set of
all of them. Old incarnations go on deciding what they had prepared, late.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.txn_pair import PureClient, coordinator
from tests.support.txn_words import MAX, Txn, ident

from tallystick.broker.txn.machine.model import TransactionResult
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.client.transactions.state import IllegalCall, State, TxnCall
from tallystick.kernel.ids import ProducerIdAndEpoch

MOVES = st.lists(
    st.tuples(
        st.sampled_from(["transact"] * 3 + ["crash", "crash", "decide late", "empty", "markers", "abort"]),
        st.sampled_from(["after write", "after prepare", "after store", "never", "never"]),
        st.sampled_from(["", "", "request", "answer"]),
    ),
    max_size=25,
)
STARTS = st.sampled_from([None, ident(42, 0), ident(42, MAX - 3), ident(42, MAX - 2)])


class World:
    """One id, one database row, the newest client and those before it."""

    def __init__(self, start: ProducerIdAndEpoch | None) -> None:
        self.txn: Txn = coordinator(start)
        self.stored = PreparedTxnState()
        self.decided: set[ProducerIdAndEpoch] = set()
        self.given: set[PreparedTxnState] = set()
        self.old: list[PureClient] = []
        self.client = PureClient(self.txn)
        self.client.init(keep=False)

    def crash(self, lost: str) -> None:
        """KIP-939, "Recovery recipe": the next incarnation asks the database, and then the cluster."""
        self.old.append(self.client)
        self.client = PureClient(self.txn)
        self.client.init(keep=True)
        self.client.complete(self.stored, lost=lost)
        assert self.client.machine.state is State.READY
        assert self.client.machine.client == self.txn.client

    def transact(self, stop: str, lost: str) -> None:
        """KIP-939, "Normal processing recipe"; it may end half way, by a crash."""
        client = self.client
        client.begin()
        assert client.write() == 0
        if stop == "after write":
            return self.crash(lost)
        token = client.prepare()
        assert token not in self.given, "a token is given out once"
        assert token.identity is not None
        self.given.add(token)
        if stop == "after prepare":
            return self.crash(lost)
        self.stored = token
        self.decided.add(token.identity)
        if stop == "after store":
            return self.crash(lost)
        client.complete(token, lost=lost)
        assert client.machine.state is State.READY
        return None

    def empty(self) -> None:
        self.client.begin()
        token = self.client.prepare()
        assert not token
        self.client.complete(token)
        assert self.client.machine.state is State.READY

    def abort(self, lost: str) -> None:
        self.client.begin()
        assert self.client.write() == 0
        self.client.prepare()
        self.client.call(TxnCall.ABORT)
        self.client.end(lost=lost)
        assert self.client.machine.state is State.READY

    def decide_late(self) -> None:
        """Every earlier client that still can does what it would have done."""
        for client in self.old:
            token = client.machine.token
            known = token.identity in self.decided
            if client.machine.state is State.PREPARED and token:
                result = client.complete(token if known else PreparedTxnState())
                assert not isinstance(result, IllegalCall)
                assert client.machine.state is not State.PREPARED

    def check(self) -> None:
        """[CLI-44, CLI-46] A transaction is committed if the database has its token, and only then."""
        for send in self.txn.world.sent_markers:
            writer = ident(send.marker_identity.producer_id, send.marker_identity.epoch - 1)
            assert (send.outcome is TransactionResult.COMMIT) == (writer in self.decided), (
                writer,
                send.outcome,
            )


@settings(max_examples=examples(quick=50, gate=50, full=150), deadline=None)
@given(STARTS, MOVES)
def test_both_halves_of_the_tally_agree(
    start: ProducerIdAndEpoch | None, moves: list[tuple[str, str, str]]
) -> None:
    world = World(start)
    for move, stop, lost in moves:
        match move:
            case "transact":
                world.transact(stop, lost)
            case "crash":
                world.crash(lost)
            case "decide late":
                world.decide_late()
            case "empty":
                world.empty()
            case "abort":
                world.abort(lost)
            case "markers":
                world.txn.world.write_markers(world.txn.id)
        world.check()
    world.crash("")
    world.check()
    committed = {
        ident(send.marker_identity.producer_id, send.marker_identity.epoch - 1)
        for send in world.txn.world.sent_markers
        if send.outcome is TransactionResult.COMMIT
    }
    assert committed == world.decided
