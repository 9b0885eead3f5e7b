"""A database, and KIP-939's recipe to commit to it and to the log as one.

The database never fails; what is told about a commit may. A row for each transactional id holds the token of
the transaction that was decided last, and a generation: a new incarnation takes the next one before it
decides anything, so that a former one can no longer commit what was decided against.

Source: KIP-939 "Recovery recipe"; the generation is the database's own fencing, which the recipe presumes.
"""

from dataclasses import dataclass, field

from tallystick.kernel.ids import Identity
from tallystick.testing.sim.clients import Producer
from tallystick.testing.sim.history import History, Txn


class Superseded(Exception):
    """The row belongs to a later generation: nothing was written."""


@dataclass(slots=True)
class Row:
    """What the database knows of one transactional id; `committed` are numbers of transactions."""

    token: Identity | None = None
    generation: int = 0
    committed: set[int] = field(default_factory=set)


class Database:
    """Rows by transactional id."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def claim(self, owner: str) -> tuple[int, Identity | None]:
        """Take the next generation; with it comes the token of the last decision."""
        row = self.rows.setdefault(owner, Row())
        row.generation += 1
        return row.generation, row.token

    def commit(self, owner: str, generation: int, txn: Txn) -> None:
        """Record the decision, and the data that goes with it. Raises: Superseded."""
        row = self.rows[owner]
        if row.generation != generation:
            raise Superseded
        row.token = txn.writer
        row.committed.add(txn.number)


async def recover(producer: Producer, database: Database, history: History) -> int:
    """Become the id's one client and finish what its former one left; the generation to commit under.

    Only an exact match commits: any other token is of an earlier decision, or of none.
    """
    in_doubt = await producer.init(keep=True)
    generation, token = database.claim(producer.name)
    if in_doubt is not None:
        commit = token == in_doubt
        await producer.end(commit=commit, txn=history.by_writer.get(in_doubt, _UNKNOWN))
    return generation


# Of a writer no client admits to be; nothing is checked of it.
_UNKNOWN = Txn(-1, "", 2, two_phase=True)
