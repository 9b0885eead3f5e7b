"""A simulated database, and KIP-939's recipe to commit atomically to it and to the log.

The database never fails, but the client may never hear how a commit ended. A row for each transactional id
holds the token of the last decided transaction, and a generation: a new incarnation takes the next generation
before it decides anything, so that an earlier one can no longer commit what was decided against.

Source: KIP-939 "Recovery recipe"; the generation is the database's own fencing, which the recipe presumes.
"""

from dataclasses import dataclass, field

from harness.sim.actors.clients import SimProducer
from harness.sim.history import History, SimTxn
from tallystick.kernel.ids import ProducerIdAndEpoch


class GenerationFenced(Exception):
    """The row belongs to a later generation: nothing was written."""


@dataclass(slots=True)
class DatabaseRow:
    """The row of one transactional id; `committed` holds the numbers of transactions."""

    token: ProducerIdAndEpoch | None = None
    generation: int = 0
    committed_numbers: set[int] = field(default_factory=set)


class SimDatabase:
    """Rows by transactional id."""

    def __init__(self) -> None:
        self.rows: dict[str, DatabaseRow] = {}

    def claim(self, owner: str) -> tuple[int, ProducerIdAndEpoch | None]:
        """Take the next generation; return it with the token of the last decision."""
        row = self.rows.setdefault(owner, DatabaseRow())
        row.generation += 1
        return row.generation, row.token

    def commit(self, owner: str, generation: int, txn: SimTxn) -> None:
        """Record the decision and the data of its transaction.

        Raises:
            Superseded: the row belongs to a later generation.
        """
        row = self.rows[owner]
        if row.generation != generation:
            raise GenerationFenced
        row.token = txn.writer
        row.committed_numbers.add(txn.number)


async def recover_dual_write(producer: SimProducer, database: SimDatabase, history: History) -> int:
    """Claim the id, finish its earlier client's transaction, and return the generation to commit under.

    Only an exact match commits: any other token belongs to an earlier decision, or to none.
    """
    in_doubt = await producer.init(keep=True)
    generation, token = database.claim(producer.name)
    if in_doubt is not None:
        commit = token == in_doubt
        await producer.end(commit=commit, txn=history.by_writer.get(in_doubt, _UNKNOWN_TXN))
    return generation


# The owner of transactions that no client claims; they are not checked.
_UNKNOWN_TXN = SimTxn(-1, "", 2, two_phase=True)
