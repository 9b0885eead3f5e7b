"""Send hostile inputs to every decoder: python -m tools.fuzzing.decoders [--inputs N] [--seed N]."""

import argparse
import random
import time

from tests.support.hostile import attack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    counts = attack(options.inputs, options.seed)
    print(
        f"{counts['inputs']:,} inputs in {time.monotonic() - began:.0f} s: "
        f"{counts['values']:,} values, {counts['refused']:,} refused, nothing else"
    )


if __name__ == "__main__":
    main()
