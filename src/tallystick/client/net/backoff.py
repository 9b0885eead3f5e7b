"""Backoff between retries, and the random numbers of the client.

These come from the operating system, not from the generator of `random`, which belongs to the application: a
wait in the client's thread would change what a program draws after `random.seed(1)`. The system's generator
has no state in the process, so a forked child draws different numbers.
"""

from random import SystemRandom
from typing import Final

_SYSTEM_RANDOM: Final = SystemRandom()

uniform = _SYSTEM_RANDOM.random
"""Return a number from 0 up to but not including 1."""

shuffle = _SYSTEM_RANDOM.shuffle
"""Shuffle a list in place."""


def compute_backoff_ms(attempt: int, first_ms: int, max_ms: int, noise: float) -> int:
    """Return how long to wait before the next try.

    The wait doubles with every attempt up to `max_ms`, then varies by 20 % either way, so that clients do not
    retry in lockstep.

    Source: KIP-580; Kafka ExponentialBackoff.

    Args:
        attempt: failures so far, 0 for the first wait.
        noise: between 0 and 1, drawn by the caller.
    """
    wait_ms = min(first_ms << min(attempt, 30), max_ms)
    return int(wait_ms * (0.8 + 0.4 * noise))
