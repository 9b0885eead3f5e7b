"""How often a part is read, so that the console never becomes the load it shows [CON-2]. Pure."""

from typing import Final

from tallystick.kernel.value import Value

REST_FACTOR: Final = 20
"""A reading that takes a second is followed by the next one twenty seconds later: 5 % of the time."""

PATIENCE_FACTOR: Final = 3
AWAY_INTERVAL_MS_MAX: Final = 5_000
AWAY_REST_MS_MAX: Final = 10_000
PARTIAL_REST_MS_MAX: Final = 30_000
"""A reading that failed, or missed something, has spent most of its time waiting, and the cluster none."""


class Pace(Value, kw_only=True):
    """The wanted pace of one part.

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
