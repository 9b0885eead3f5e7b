"""What the client draws at random: waits, and which broker is asked first.

From the operating system, not from the module `random`: its one generator belongs to the application. There,
a wait in our thread would change what a program draws after `random.seed(1)`. It has no state, so nothing is
the same in a forked child either.
"""

from random import SystemRandom
from typing import Final

_SYSTEM: Final = SystemRandom()

noise = _SYSTEM.random
"""0 up to, but not, 1."""

shuffle = _SYSTEM.shuffle
"""A list in place."""
