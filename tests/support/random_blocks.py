"""Blocks of dual writes that are drawn at random, what they do with a session, and what must come of them.

A block adds, changes and deletes objects that are made inside or outside of it, in savepoints or not, flushed
or not, and sends a record for each. An attempt of it may fail in many ways; the last one does not. The model
knows nothing of sessions: what is in a scope that ended without an error counts.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from hypothesis import strategies as st
from sqlalchemy import Connection, Integer, String, Table, delete, event, insert, inspect, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

COUNT: Final = 3  # of each kind of object or row that a step may be about
STORED: Final = ("always", *(f"{kind} {n}" for kind in ("stored", "held") for n in range(COUNT)))
"""Rows that are there before: objects of them are loaded in the block, or were loaded before it."""


class Base(DeclarativeBase):
    pass


class Paid(Base):
    __tablename__ = "paid"

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    cents: Mapped[int] = mapped_column(Integer, default=1)


TABLE: Final[Table] = Paid.metadata.tables["paid"]


class Failure(Enum):
    """How an attempt ends; nothing of it is committed in any of these."""

    RAISES = "an exception of the block"
    INTERRUPTED = "Ctrl-C or a cancelled task in the block"
    DUPLICATE = "a flush that is refused"
    STATEMENT = "a statement that is refused"
    LOST = "the connection is lost"
    CLOSED = "the block closes its session, and raises"
    REFUSED = "COMMIT is refused"
    IN_DOUBT = "the answer to COMMIT is lost, and it did not happen"
    INTERRUPTED_COMMIT = "Ctrl-C in COMMIT, which did not happen"


class BlockFails(Exception):
    """Raised by a block, or in a savepoint of it."""


class Interrupted(BaseException):
    """Stands for Ctrl-C and for a task that is cancelled."""


@dataclass(frozen=True)
class Step:
    """One step: `what` is done to object or row number `of`, which may be flushed at once."""

    what: str
    of: int = 0
    flushes: bool = False


@dataclass(frozen=True)
class Nested:
    """A savepoint; one that raises is caught outside of it."""

    steps: "tuple[Step | Nested, ...]"
    raises: bool


@dataclass(frozen=True)
class Drawn:
    """A block, and how its attempts end before the one that is committed."""

    steps: tuple[Step | Nested, ...]
    failures: tuple[Failure, ...]


_STEPS: Final = st.builds(
    Step,
    what=st.sampled_from(
        ("outside", "outside", "inside", "table", "stored", "held", "delete", "delete held")
    ),
    of=st.integers(0, COUNT - 1),
    flushes=st.booleans(),
)


def _nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(Nested, st.lists(inner, max_size=4).map(tuple), st.booleans())


STEPS: Final = st.recursive(_STEPS, _nest, max_leaves=8)
BLOCKS: Final = st.builds(
    Drawn,
    steps=st.lists(STEPS, min_size=1, max_size=5).map(tuple),
    failures=st.lists(st.sampled_from(Failure), max_size=3).map(tuple),
)


@dataclass
class Effects:
    """What is in both halves: cents by name, and how often each record is there."""

    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STORED, 1))
    records: Counter[str] = field(default_factory=Counter)

    def apply(self, steps: tuple[Step | Nested, ...], at: str = "") -> None:
        """Apply what a scope that ends without an error does."""
        for number, step in enumerate(steps):
            place = f"{at}.{number}"
            if isinstance(step, Step):
                self._apply_step(step, place)
                self.records[place] += 1
            elif not step.raises:
                self.apply(step.steps, place)

    def _apply_step(self, step: Step, place: str) -> None:
        match step.what:
            case "outside":
                self.rows.setdefault(f"outside {step.of}", 1)
            case "inside" | "table":
                self.rows[f"{step.what} {place}"] = 1
            case "stored" | "held":
                if (name := f"{step.what} {step.of}") in self.rows:
                    self.rows[name] += 1
            case "delete":
                self.rows.pop(f"stored {step.of}", None)
            case "delete held":
                self.rows.pop(f"held {step.of}", None)


class Objects:
    """Objects that live longer than one attempt: new ones, and detached ones of rows that are there."""

    def __init__(self, session: Session) -> None:
        self.outside = [Paid(name=f"outside {n}", cents=1) for n in range(COUNT)]
        self.held = [session.get_one(Paid, f"held {n}") for n in range(COUNT)]
        session.expunge_all()

    def do_step(self, session: Session, step: Step, place: str) -> None:
        """Do one step in a blocking session, as that of asyncio has underneath."""
        held = self.held[step.of]
        match step.what:
            case "outside":
                session.add(self.outside[step.of])
            case "inside":
                session.add(Paid(name=f"inside {place}", cents=1))
            case "table":
                session.connection().execute(insert(TABLE).values(name=f"table {place}", cents=1))
            case "stored" if (found := session.get(Paid, f"stored {step.of}")) is not None:
                found.cents += 1
            case "delete" if (found := session.get(Paid, f"stored {step.of}")) is not None:
                session.delete(found)
            case "held" if held not in session.deleted and not inspect(held).deleted:
                session.add(held)
                held.cents += 1
            case "delete held" if not inspect(held).deleted:
                session.delete(held)
        if step.flushes:
            session.flush()

    def do_steps(
        self,
        txn: Any,
        steps: tuple[Step | Nested, ...],
        *,
        at: str = "",
        part: Any = None,
        topic: str = "paid",
    ) -> None:
        """Do the steps of a scope, and send the place of each: with `txn`, or with the savepoint `part`."""
        for number, step in enumerate(steps):
            place = f"{at}.{number}"
            if isinstance(step, Step):
                (part or txn).send(topic, place.encode())
                self.do_step(txn.session, step, place)
                continue
            with suppress(BlockFails), txn.savepoint() as inner:
                self.do_steps(txn, step.steps, at=place, part=inner, topic=topic)
                if step.raises:
                    raise BlockFails


def prepare(connection: Connection) -> None:
    """Make the table, and have in it the rows that are there before a block."""
    Base.metadata.create_all(connection)
    connection.execute(delete(TABLE))
    connection.execute(insert(TABLE), [{"name": name, "cents": 1} for name in STORED])


def read(connection: Connection) -> dict[str, int]:
    """Return the cents of each row, by name."""
    return {row.name: row.cents for row in connection.execute(TABLE.select())}


class _Refusal(Exception):
    sqlstate = "23505"


def fail_commit(connection: Connection, failure: Failure | None) -> None:
    """Let COMMIT end as `failure` says, if it is one of COMMIT."""
    errors: dict[Failure | None, BaseException] = {
        Failure.REFUSED: IntegrityError("COMMIT", None, _Refusal()),
        Failure.IN_DOUBT: TimeoutError("a signal handler's"),
        Failure.INTERRUPTED_COMMIT: Interrupted(),
    }
    error = errors.get(failure)
    if error is None:
        return

    def fail(_: Connection) -> None:
        raise error

    event.listen(connection, "commit", fail)


def fail_in_block(session: Session, failure: Failure | None) -> None:
    """End a block as `failure` says, if it is one of the block."""
    match failure:
        case Failure.RAISES:
            raise BlockFails
        case Failure.INTERRUPTED:
            raise Interrupted
        case Failure.DUPLICATE:
            session.add(Paid(name="always", cents=1))
            session.flush()
        case Failure.STATEMENT:
            session.execute(text("INSERT INTO no_such_table VALUES (1)"))
        case Failure.LOST:
            session.flush()
            session.connection().invalidate()
            raise BlockFails
        case Failure.CLOSED:
            session.flush()
            session.close()
            raise BlockFails
