"""The examples that serve: started as a user would start them, and killed."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from tallystick.testing import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextlib.contextmanager
def service(command: list[str], port: int, log: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A web service until the end of the block, answering from its beginning on."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=output, stderr=output, env={**os.environ, **env}
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/").status_code == 404
        return False

    try:
        eventually(answers, 60)
        yield process
    finally:
        process.kill()
        process.wait()
