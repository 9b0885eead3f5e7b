"""Random numbers of the client: for backoff, and for the order in which brokers are asked.

They come from the operating system, not from the generator of `random`, which belongs to the application: a
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
