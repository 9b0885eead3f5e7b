"""Configuration of the collector: sources, how often each is read, and limits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from tallystick.admin.txn.transactions import DEFAULT_LIMIT_MS
from tallystick.client.settings.config import AdminConfig
from tallystick.console.collect.store_reader import StoreAddress
from tallystick.kernel.ids import is_table_url
from tallystick.kernel.limits import MIB
from tallystick.kernel.settings import BadConfig, collect_problems
from tallystick.kernel.value import Value
from tallystick.lake.names import find_url_problem
from tallystick.spark.options.option_table import DECISIONS_TOPIC

MAX_MS: Final = 24 * 3_600_000


REST_FACTOR: Final = 20
"""A reading that takes a second is followed by the next one twenty seconds later: 5 % of the time."""

PATIENCE_FACTOR: Final = 3
AWAY_INTERVAL_MS_MAX: Final = 5_000
AWAY_REST_MS_MAX: Final = 10_000
PARTIAL_REST_MS_MAX: Final = 30_000
"""A reading that failed, or missed something, has spent most of its time waiting, and the cluster none."""


class Pace(Value, kw_only=True):
    """Pace at which a part is read, so that the console never becomes the load it shows [CON-2].

    interval_ms  from the beginning of a reading to the beginning of the next
    limit_ms     after which a reading is given up
    patience_ms  after which it is said that a reading has had no answer, unless the last one took long, too
    rest_factor  so many times as long as a reading took, none is begun after it
    """

    interval_ms: int
    limit_ms: int = 10_000
    patience_ms: int = 1_500
    rest_factor: int = REST_FACTOR


def compute_patience_ms(pace: Pace, took_ms: int) -> int:
    """Return how long a reading may take before its part counts as away.

    Args:
        took_ms: how long the last reading took: a large cluster is not away because it is large.
    """
    return max(pace.patience_ms, min(PATIENCE_FACTOR * took_ms, pace.limit_ms))


def compute_interval_ms(
    configured_ms: int,
    took_ms: int,
    *,
    rest_max_ms: int | None = None,
    is_hurried: bool = False,
    rest_factor: int = REST_FACTOR,
) -> int:
    """Return the time from the beginning of the last reading to the beginning of the next one.

    Args:
        took_ms: how long the last reading took.
        rest_max_ms: AWAY_REST_MS_MAX or PARTIAL_REST_MS_MAX after a reading that was not whole.
        is_hurried: a user waits for the next reading; only the load counts then.
        rest_factor: so many times as long as the reading took is the least.
    """
    rest_ms = rest_factor * took_ms
    if rest_max_ms is not None:
        rest_ms = min(rest_ms, rest_max_ms)
    return rest_ms if is_hurried else max(configured_ms, rest_ms)


class Paces(Value, kw_only=True):
    """The pace of each part. None of them is read faster than `pacing` allows."""

    cluster: Pace = Pace(interval_ms=30_000)
    transactions: Pace = Pace(interval_ms=2_000)
    named_ids: Pace = Pace(interval_ms=60_000)
    topics: Pace = Pace(interval_ms=5_000)
    stores: Pace = Pace(interval_ms=5_000)
    decisions: Pace = Pace(interval_ms=5_000)
    groups: Pace = Pace(interval_ms=10_000)


class CollectorConfig(Value, kw_only=True):
    """A collector's settings; `check` returns them only if all are usable.

    client            settings of an admin client, by Kafka's dotted names
    stores            databases with rows of dual writes, or with decisions
    decision_topics   topics with decisions of Spark's queries; one that does not exist is no failure
    hanging_limit_ms  the longest time that a transaction should take
    publish_ms        the shortest time between two snapshots
    named_max         ids that are named by stores and decisions, described in one reading
    lag_bytes_max     bytes fetched in one reading of groups in order to count records
    """

    client: Mapping[str, object]
    stores: tuple[StoreAddress, ...] = ()
    decision_topics: tuple[str, ...] = (DECISIONS_TOPIC,)
    paces: Paces = Paces()
    hanging_limit_ms: int = DEFAULT_LIMIT_MS
    publish_ms: int = 500
    named_max: int = 5_000
    lag_bytes_max: int = 16 * MIB

    @classmethod
    def check(
        cls, client: Mapping[str, object], store_urls: Sequence[str] = (), **settings: object
    ) -> "CollectorConfig":
        """Return the configuration. Raises: BadConfig with every problem at once.

        Args:
            settings: the other fields by name.
        """
        stores = tuple(StoreAddress(url) for url in dict.fromkeys(store_urls))
        config = cls(client=client, stores=stores, **settings)  # type: ignore[arg-type]
        problems: list[str] = []
        with collect_problems(problems):
            AdminConfig.parse(config.admin_settings)
        problems += config.find_problems()
        if problems:
            raise BadConfig("\n".join(problems))
        return config

    @property
    def admin_settings(self) -> Mapping[str, object]:
        """The client's settings with the limit of the transactions' reading, unless they have their own."""
        limit_ms = max(pace.limit_ms for pace in (self.paces.transactions, self.paces.topics))
        ours = {"client.id": "tallystick-console", "default.api.timeout.ms": limit_ms}
        if "request.timeout.ms" not in self.client:
            ours["request.timeout.ms"] = limit_ms
        return {**ours, **self.client}

    @property
    def bootstrap_servers(self) -> str:
        given = self.client.get("bootstrap.servers", "")
        return given if isinstance(given, str) else ",".join(map(str, given))  # type: ignore[call-overload]

    def find_problems(self) -> Iterator[str]:
        """Yield the problems of everything but the client's settings."""
        for number, store in enumerate(self.stores, 1):
            if is_table_url(store.url):
                problem = find_url_problem(store.url)
                if problem is not None:
                    yield f"store {number}: {problem}"
            elif not _is_url(store.url):  # and what it is instead may contain a password
                yield f"store {number}: not a URL, such as postgresql+psycopg://me@host/shop"
        names = [store.name for store in self.stores]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield f"store {name}: given {names.count(name)} times, with different passwords or settings"
        for topic in self.decision_topics:
            if not topic:
                yield "decision topic: its name is empty"
        for field in self.paces.__struct_fields__:
            pace: Pace = getattr(self.paces, field)
            if not 0 < pace.interval_ms <= MAX_MS or not 0 < pace.limit_ms <= MAX_MS:
                yield f"pace of {field}: {pace.interval_ms} and {pace.limit_ms} ms are not in 1..{MAX_MS}"
        for field in ("hanging_limit_ms", "publish_ms", "named_max", "lag_bytes_max"):
            value: int = getattr(self, field)
            if value < 0:
                yield f"{field}: {value} is negative"


def _is_url(text: str) -> bool:
    try:
        return is_table_url(text) or ("://" in text and bool(urlsplit(text).scheme))
    except ValueError:
        return False
