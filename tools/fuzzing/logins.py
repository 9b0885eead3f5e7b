"""Send hostile logins, key stores and handshakes: python -m tools.fuzzing.logins [--inputs N] [--seed N].

One input is one conversation with the broker's login, one with a client's, one file or token, a few changes
of SCRAM users, one key set with tokens, a few logins that wait for a key, or one TLS handshake. The rules are
[LGN-1] to [LGN-5] of docs/invariants.md; a seed gives the same inputs each time.
"""

import argparse
import logging
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from tests.support.hostile_keys import attack_keys, attack_late_keys
from tests.support.hostile_logins import STRANGER_BYTES_MAX, LyingBroker, Stranger, require
from tests.support.hostile_stores import attack_parser, attack_tls, contexts, list_parsers
from tests.support.hostile_users import attack_users

from tallystick.kernel.limits import MIB

# Most inputs are conversations with the broker; a TLS handshake costs as much as a hundred of them, as does a
# loop with waiting logins.
SHARES: Final = {
    "strangers": 55,
    "lying brokers": 22,
    "files and tokens": 13,
    "SCRAM users": 4,
    "key sets": 4,
    "late keys": 1,
    "TLS": 1,
}
MEASURED_EVERY: Final = 500
# Of one input, whatever it promises: the requests of a stranger, and what is made of them.
MEMORY_BYTES_MAX: Final = 4 * STRANGER_BYTES_MAX
# An administrator's request and a provider's document may have a MiB, which JSON makes objects of.
LARGE_BYTES_MAX: Final = {"SCRAM users": 64 * MIB, "key sets": 64 * MIB, "late keys": 128 * MIB}


def attack_broker(rng: random.Random) -> bool:
    """Run one conversation with the broker's side; return whether someone logged in."""
    stranger = Stranger(rng)
    stranger.attack()
    return bool(stranger.broker.users)


KINDS: Final[dict[str, Callable[[random.Random], bool]]] = {
    "strangers": attack_broker,
    "lying brokers": lambda rng: LyingBroker(rng).attack(),
    "files and tokens": attack_parser,
    "SCRAM users": attack_users,
    "key sets": attack_keys,
    "late keys": attack_late_keys,
    "TLS": attack_tls,
}


def attack(inputs: int, seed: int, shares: Mapping[str, int] = SHARES) -> Counter[tuple[str, bool]]:
    """Send inputs, and return how many of each kind were taken (a login that succeeded) and how many not.

    An exception that is not declared, and a rule that does not hold, propagate with the number of the input.
    """
    contexts()
    list_parsers()
    counts: Counter[tuple[str, bool]] = Counter()
    chooser = random.Random(seed)
    names, weights = list(shares), list(shares.values())
    for number in range(inputs):
        kind = chooser.choices(names, weights)[0]
        # A seed for each, so that one input can be repeated without those before it.
        rng = random.Random(f"{seed} {number}")
        is_measured = number % MEASURED_EVERY == 0
        try:
            is_taken = measure(kind, rng) if is_measured else KINDS[kind](rng)
        except BaseException as exc:
            exc.add_note(f"seed {seed}, input {number}: {kind}")
            raise
        counts[kind, is_taken] += 1
    return counts


def measure(kind: str, rng: random.Random) -> bool:
    """Run one input of a kind, and require that its memory is bounded."""
    tracemalloc.start()
    try:
        is_taken = KINDS[kind](rng)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    limit = LARGE_BYTES_MAX.get(kind, MEMORY_BYTES_MAX)
    require(peak <= limit, "LGN-4", f"one input took {peak} bytes")
    return is_taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--kind", choices=tuple(SHARES), help="only inputs of one kind")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    logging.disable()
    shares = {options.kind: 1} if options.kind else SHARES
    counts = attack(options.inputs, options.seed, shares)
    print(f"{options.inputs:,} inputs in {time.monotonic() - began:.0f} s, every rule held:")
    for kind in shares:
        print(f"  {kind}: {counts[kind, True]:,} taken, {counts[kind, False]:,} refused or not finished")


if __name__ == "__main__":
    main()
