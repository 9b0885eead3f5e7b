"""Recovery of a query that will not be restarted: inspect its transactions, and complete or abort them.

    found = resolve("pipeline.flights", {"bootstrap.servers": "localhost:9092"}, dry_run=True)

This does what the next start of the query would do: claim the prefix, commit what was decided, and abort the
rest. It fences a query that is still running, which then stops. Under two-phase commit open transactions have
no timeout, so nothing else ends them.
"""

from collections.abc import Mapping

from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace
from tallystick.spark.options.option_table import DECISIONS_TOPIC
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.coordinator import PrefixStatus
from tallystick.spark.protocol.transactional_ids import DATABASE_SUFFIX, find_prefix_problems
from tallystick.spark.sink.context import SinkContext

__all__ = ["PrefixStatus", "read_last_decision", "resolve"]


def resolve(
    prefix: str,
    client: Mapping[str, str],
    *,
    dry_run: bool = False,
    retire: bool = False,
    decisions: str = DECISIONS_TOPIC,
) -> PrefixStatus:
    """Complete the last decision of a prefix, and abort every other open transaction of its workers.

    Args:
        client: the query's producer settings by Kafka's names, and `tallystick.modes`.
        dry_run: only look, and change nothing.
        retire: also forget the decision, so that a new query may begin under the prefix. Decided transactions
            that the cluster has aborted are then accepted as lost; without it they are an error.
        decisions: the decision topic.
    Returns: the state before any change.
    Raises: BadConfig; DecisionBroken without `retire`; NoDecisionTopic; the client's errors.
    """
    return resolve_and_close(
        SinkContext(build_options(prefix, client, decisions)), dry_run=dry_run, retire=retire
    )


def read_last_decision(
    prefix: str, client: Mapping[str, str], *, decisions: str = DECISIONS_TOPIC
) -> Decision | None:
    """Return a prefix's last decision, for a query that begins where it ended. Raises: as `resolve`."""
    return read_and_close(SinkContext(build_options(prefix, client, decisions)))


def build_options(prefix: str, client: Mapping[str, str], decisions: str = DECISIONS_TOPIC) -> SinkOptions:
    """Build sink options from a prefix and its query's client settings. Raises: BadConfig."""
    if problems := list(find_prefix_problems(prefix)):
        raise BadConfig("\n".join(problems))
    settings = dict(client)
    modes = tuple(each.strip() for each in settings.pop("tallystick.modes", "2pc").split(","))
    return SinkOptions(prefix=prefix, client=settings, modes=modes, decisions_topic=decisions)


def read_and_close(context: SinkContext) -> Decision | None:
    """Read the last decision, and close the station."""
    try:
        return context.run(context.decisions.read(), "look").decision
    finally:
        context.close()


def resolve_and_close(context: SinkContext, *, dry_run: bool, retire: bool) -> PrefixStatus:
    """Inspect, resolve or retire the prefix of this station, and close the station."""
    try:
        if retire and not dry_run:
            return context.run(context.coordinator.retire(), "retire")
        status = context.run(context.coordinator.inspect(), "inspect")
        if not dry_run:
            context.begin()
        return status
    finally:
        context.close()


def with_database_suffix(options: SinkOptions) -> SinkOptions:
    """Add the suffix to the prefix, so that readers of the decision topic do not end a table's batches."""
    return replace(options, prefix=options.prefix + DATABASE_SUFFIX)
