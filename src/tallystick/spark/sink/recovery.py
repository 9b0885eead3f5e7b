"""What a query that nobody restarts has left: looked at, and brought to its end.

    found = resolve("pipeline.flights", {"bootstrap.servers": "localhost:9092"}, dry_run=True)

It does what the next start of the query would: claims the prefix, commits what was decided, aborts the rest.
A query that is alive is fenced by that, and stops. Under two-phase commit nothing else ends what is open.
"""

from collections.abc import Mapping

from tallystick.kernel.settings import BadConfig
from tallystick.spark.options.option_table import DECISIONS_TOPIC
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.coordinator import Standing
from tallystick.spark.protocol.transactional_ids import prefix_problems
from tallystick.spark.sink.context import Station

__all__ = ["Standing", "last_decision", "resolve"]


def resolve(
    prefix: str,
    client: Mapping[str, str],
    *,
    dry_run: bool = False,
    retire: bool = False,
    decisions: str = DECISIONS_TOPIC,
) -> Standing:
    """Finish the last decision of a prefix, and end every other open transaction of its workers.

    Args:
        client: settings of a producer by Kafka's names, `tallystick.modes` among them: those of the query.
        dry_run: look only.
        retire: also forget the decision, so that a new query may begin under the prefix. What the cluster has
            aborted of it is then accepted as lost; else that is an error.
        decisions: the topic of the decisions.
    Returns: what was found, before anything was done.
    Raises: BadConfig; DecisionBroken without `retire`; NoDecisionTopic; a client's errors.
    """
    return settle(Station(options_of(prefix, client, decisions)), dry_run=dry_run, retire=retire)


def last_decision(
    prefix: str, client: Mapping[str, str], *, decisions: str = DECISIONS_TOPIC
) -> Decision | None:
    """The last decision under a prefix, for who begins where it ended. Raises: as `resolve`."""
    return look(Station(options_of(prefix, client, decisions)))


def options_of(prefix: str, client: Mapping[str, str], decisions: str = DECISIONS_TOPIC) -> SinkOptions:
    """Of a prefix and the client of its query. Raises: BadConfig."""
    if problems := list(prefix_problems(prefix)):
        raise BadConfig("\n".join(problems))
    own = dict(client)
    modes = tuple(each.strip() for each in own.pop("tallystick.modes", "2pc").split(","))
    return SinkOptions(prefix=prefix, client=own, modes=modes, decisions=decisions)


def look(station: Station) -> Decision | None:
    """What `station` knows as decided; it is closed behind it."""
    try:
        return station.run(station.decisions.read(), "look").decision
    finally:
        station.close()


def settle(station: Station, *, dry_run: bool, retire: bool) -> Standing:
    """`resolve`, wherever the decisions are; the station is closed behind it."""
    try:
        if retire and not dry_run:
            return station.run(station.coordinator.retire(), "retire")
        found = station.run(station.coordinator.inspect(), "inspect")
        if not dry_run:
            station.begin()
        return found
    finally:
        station.close()
