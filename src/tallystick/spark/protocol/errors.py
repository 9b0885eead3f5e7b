"""Errors of the Spark sink. Each message says what happened, what is safe, and what to do.

    SinkError
      NotBegun            a batch cannot begin; has the reason
      PrefixTaken         another query has claimed the prefix; this one writes nothing more
      UnknownCheckpoint   the prefix has decisions, but of another query
      DecisionsMissing    the query continues, but its decisions are not where the sink looks for them
      CheckpointsDiffer   the checkpoint and the decisions disagree about the batches
      MissingRight        the cluster refuses a transactional id of the sink
      VoteLost            a prepared transaction is no longer there; nothing was decided
      InvalidRows             rows that cannot be turned into records
      MixedVotes          the tasks of a batch do not agree on what they wrote
      DecisionBroken      the cluster has aborted part of a decided batch
      TooManyTasks        a decision does not fit into one record
      DecisionsLost       the database has lost decisions that it had acknowledged
      NoDecisionTopic     there is no usable topic for the decisions

All of them can be pickled. An unknown outcome is InDoubt (kernel), as everywhere.
"""

from tallystick.kernel.errors import TallystickError


class SinkError(TallystickError):
    """Base class of the sink's errors; the text is for the user."""


class NotBegun(SinkError):
    """The batch could not begin; the text has the reason and the name of its class."""


class PrefixTaken(SinkError):
    """Another query has claimed this prefix. This driver has decided nothing of the batch."""

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
    """A query continues without its decisions: they are elsewhere or lost, or it used another sink before."""


class CheckpointsDiffer(SinkError):
    """Checkpoint and decisions disagree about the batches; nothing was written and nothing skipped."""


class VoteLost(SinkError):
    """A prepared transaction is no longer as its task left it. Nothing was decided: the batch is repeated."""


class InvalidRows(SinkError):
    """Some rows cannot be sent, such as those without a topic; nothing of the batch was decided."""


class MissingRight(SinkError):
    """The cluster refuses a transactional id of the sink; nothing of the batch was decided."""


class MixedVotes(SinkError):
    """The votes of one batch do not belong together; nothing was decided."""


class DecisionBroken(SinkError):
    """A decided batch cannot be completed: the cluster has aborted or lost some of its transactions."""


class DecisionsLost(SinkError):
    """A database has lost acknowledged decisions whose transactions are committed in Kafka."""


class TooManyTasks(SinkError):
    """The decision of a batch does not fit into one record; nothing was decided."""


class NoDecisionTopic(SinkError):
    """The decision topic is missing or cannot keep decisions; nothing was begun."""


class BadCommittable(SinkError):
    """The bytes are not a vote, lease or decision of this version or the one before it."""
