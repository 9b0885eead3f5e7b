"""Time `make run` as a newcomer meets it: a fresh clone, a fresh home, on each Python.

    $ python -m tools.bench.first_run python3.11 python3.12 python3.13 [--cold]

Prints a line for each Python: seconds to the first output, the first kill, the verdict on payments, the first
kill with Spark, and the last verdict. Without `--cold` packages come from this account's cache.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_COLUMNS: Final = ("first output", "first kill", "payments", "kill on Spark", "verdict", "longest silence")
_VERDICT: Final = "every row, exactly once"
# What reaches the network, and Java: nothing that an account has.
_KEPT: Final = ("PATH", "LANG", "JAVA_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "NO_PROXY")
_SPARK: Final = "Now with Spark"


def run(python: str, *, cold: bool) -> tuple[int, dict[str, float]]:
    """Run it once; return its exit code and the seconds of each event."""
    with tempfile.TemporaryDirectory(prefix="first-run-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)  # PostgreSQL runs as another user where root runs this
        clone = Path(folder, "tallystick")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        home = Path(folder, "home")
        home.mkdir()
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        if not cold:
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            environment |= {"PIP_CACHE_DIR": str(cache / "pip"), "UV_CACHE_DIR": str(cache / "uv")}
        started_at = time.monotonic()
        process = subprocess.Popen(
            ["make", "run", f"PYTHON={python}"],
            cwd=clone,
            env={**environment, "HOME": str(home), "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        seconds: dict[str, float] = {}
        last_at, silence, is_on_spark = started_at, 0.0, False
        for text in _read_texts(process):
            at = time.monotonic()
            silence, last_at = max(silence, at - last_at), at
            is_on_spark = is_on_spark or _SPARK in text
            for words, before, after in (
                ("", "first output", "first output"),
                ("KILLED", "first kill", "kill on Spark"),
                (_VERDICT, "payments", "verdict"),
            ):
                if words in text:
                    seconds.setdefault(after if is_on_spark else before, at - started_at)
        return process.wait(), {**seconds, "longest silence": silence}


def _read_texts(process: "subprocess.Popen[bytes]") -> Iterator[str]:
    assert process.stdout is not None
    while data := os.read(process.stdout.fileno(), 65536):
        yield data.decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--cold", action="store_true", help="download every package")
    options = parser.parse_args()
    print(f"{'':26}", *(f"{each:>16}" for each in _COLUMNS))
    for python in options.pythons:
        code, seconds = run(shutil.which(python) or python, cold=options.cold)
        numbers = (f"{seconds[each]:14.1f} s" if each in seconds else f"{'-':>16}" for each in _COLUMNS)
        print(f"{python:26}", *numbers, "" if code == 0 else f"exit code {code}", flush=True)


if __name__ == "__main__":
    main()
