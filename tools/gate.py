"""Run format, lint, types, layers and twins in parallel, and print only the output of what failed.

It also builds the documentation site and the next changelog. `--quick` does without both, and without
the types of the tests.
`--beside COMMAND...`, last, runs a command at the same time, whose output is shown as it comes: types keep
one processor busy for most of the time, so the tests of the quick loop take the other.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BIN = Path(sys.executable).parent
STEPS = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["mypy"],
    "layers": ["lint-imports"],
    "twins": ["python", "-m", "tools.async_to_sync", "--check"],
}
QUICK = STEPS | {"types": ["mypy", "-p", "tallystick", "-p", "harness"]}
DOCS = {
    "docs": ["mkdocs", "build"],
    "changes": ["towncrier", "build", "--draft", "--version", "Unreleased"],
}


def run(step: tuple[str, Sequence[str]]) -> tuple[str, float, int, str]:
    """Run one step; return its name, seconds, exit code and output."""
    began = time.monotonic()
    name, (program, *arguments) = step
    # mkdocs-material announces its successor with every build: docs/adr/0003 covers it.
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(
        [BIN / program, *arguments], capture_output=True, text=True, check=False, env=quiet
    )
    return name, time.monotonic() - began, result.returncode, result.stdout + result.stderr


def main() -> int:
    arguments = sys.argv[1:]
    at = arguments.index("--beside") if "--beside" in arguments else len(arguments)
    options, command = arguments[:at], arguments[at + 1 :]
    with ThreadPoolExecutor() as pool:
        steps = pool.map(run, (QUICK if "--quick" in options else STEPS | DOCS).items())
        is_beside_ok = not command or subprocess.run(command, check=False).returncode == 0
        results = list(steps)
    for name, seconds, code, output in results:
        print(f"{name:8}{'ok' if code == 0 else 'FAILED':8}{seconds:5.1f} s")
        if code:
            print(output)
    return int(not is_beside_ok or any(code for _, _, code, _ in results))


if __name__ == "__main__":
    sys.exit(main())
