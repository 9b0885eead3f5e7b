"""What Spark's sink raises of its own: what happened, what is safe, and what to do.

    SinkError
      NotBegun            a batch cannot begin; what Spark shows of it
      PrefixTaken         another query has claimed the prefix; this one writes nothing more
      UnknownCheckpoint   the prefix is known, and the query is not
      DecisionsMissing    the query goes on, and what was decided of it is not known where it is looked for
      CheckpointsDiffer   checkpoint and decisions tell of different batches
      VoteLost            a prepared transaction is no longer there; nothing was decided
      BadRows             rows that cannot be records
      MixedVotes          the tasks of a batch do not agree on what they wrote
      DecisionBroken      the cluster has aborted part of what was decided
      TooManyTasks        a decision does not fit into one record
      DecisionsLost       the database knows less than it had acknowledged
      NoDecisionTopic     decisions cannot be kept

All of them pickle. Outcomes that could not be learned are InDoubt (kernel), as everywhere.
"""

from pickle import PickleError

from tallystick.kernel.errors import TallystickError


class SinkError(TallystickError):
    """Root of these; the text is for the user."""


class NotBegun(SinkError, PickleError):
    """The batch has not begun; the text has the reason, and how it is called.

    It is raised while Spark pickles the writer. PySpark calls all other errors there its own, "Could not
    serialize object", which sends the reader to look in a wrong place.
    """


class PrefixTaken(SinkError):
    """Another query has claimed this prefix. Nothing of this batch was decided here."""

    def __init__(self, prefix: str, why: str) -> None:
        super().__init__(prefix, why)
        self.prefix, self.why = prefix, why

    def __str__(self) -> str:
        return (
            f"transactional.id.prefix {self.prefix!r} was claimed by another query ({self.why}): this one "
            "writes nothing more. One live query has a prefix: stop the other one, or give each its own"
        )


class UnknownCheckpoint(SinkError):
    """The prefix has decisions of another query: its checkpoint was deleted, or two queries share it."""


class DecisionsMissing(SinkError):
    """A query goes on without its decisions: they are elsewhere, or lost, or another sink wrote before."""


class CheckpointsDiffer(SinkError):
    """Checkpoint and decisions tell of different batches; nothing was written and nothing skipped."""


class VoteLost(SinkError):
    """A prepared transaction is no longer as its task left it. Nothing was decided: the batch is repeated."""


class BadRows(SinkError):
    """Rows have no topic; nothing of the batch was decided."""


class MixedVotes(SinkError):
    """The votes of one batch do not belong together; nothing was decided."""


class DecisionBroken(SinkError):
    """A decided batch cannot be completed: the cluster has ended part of it by itself, or lost it."""


class DecisionsLost(SinkError):
    """A database lost decisions that it had acknowledged, whose transactions in Kafka are committed."""


class TooManyTasks(SinkError):
    """The decision of a batch does not fit into one record; nothing was decided."""


class NoDecisionTopic(SinkError):
    """The topic of the decisions is missing or cannot keep them; nothing was begun."""


class BadCommittable(SinkError):
    """Bytes are not a vote, lease or decision of this version or the one before it."""
