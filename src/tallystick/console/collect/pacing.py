"""How often a part is read, so that the console never becomes the load it shows [CON-2]. Pure."""

from typing import Final

from tallystick.kernel.value import Value

REST_FACTOR: Final = 20
"""A reading that takes a second is followed by the next one twenty seconds later: 5 % of the time."""

INCOMPLETE_INTERVAL_MS_MAX: Final = 10_000
"""A reading that failed has spent its time waiting: what was away is looked for again soon."""


class Pace(Value, kw_only=True):
    """The wanted pace of one part.

    interval_ms  from the beginning of a reading to the beginning of the next
    limit_ms     after which a reading is given up
    """

    interval_ms: int
    limit_ms: int = 10_000


def compute_interval_ms(
    configured_ms: int, took_ms: int, *, is_complete: bool = True, is_hurried: bool = False
) -> int:
    """Return the time from the beginning of the last reading to the beginning of the next one.

    Args:
        took_ms: how long the last reading took.
        is_complete: whether it read everything.
        is_hurried: somebody waits for the next reading; only the load counts then.
    """
    rest_ms = REST_FACTOR * took_ms
    if not is_complete:
        rest_ms = min(rest_ms, INCOMPLETE_INTERVAL_MS_MAX)
    return rest_ms if is_hurried else max(configured_ms, rest_ms)
