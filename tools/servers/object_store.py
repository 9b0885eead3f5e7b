"""An object store for tests: S3 as moto's server has it, in a process of its own, on a free port of loopback.

    with ObjectStore() as store:
        bucket = store.create_bucket()
        DeltaTable.create(f"s3://{bucket}/table", schema=schema, storage_options=store.options)

It can lose answers, and forget conditions. It is no thread of the tests, since Arrow may hold the interpreter
while it waits for an answer.
"""

import json
import subprocess
import sys
import urllib.request
from secrets import token_hex
from typing import Final, Self

FAULTS_PATH: Final = "/tallystick-faults"
_STOP_SECONDS_MAX: Final = 30


class ObjectStore:
    """The server's process, and the options by which delta-rs and obstore reach it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tools.servers.object_store_process"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            raise RuntimeError("the object store has not started; its process has said why")
        self.url = f"http://127.0.0.1:{port}"

    @property
    def options(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_ALLOW_HTTP": "true",
        }

    def create_bucket(self) -> str:
        name = f"lake-{token_hex(6)}"
        self._request("PUT", f"/{name}")
        return name

    def lose_answer(self, path_part: str) -> None:
        """Carry out the next PUT of a path, and answer with an error."""
        self._set_faults(lose=path_part)

    @property
    def lost_answers(self) -> int:
        """Number of answers that were lost, since the start."""
        return int(self._request("GET", FAULTS_PATH))

    def ignore_conditions(self, ignores: bool = True) -> None:
        """Overwrite what was to be created only if absent, as stores without conditional writes do."""
        self._set_faults(unconditional=ignores)

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.communicate(timeout=_STOP_SECONDS_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _set_faults(self, **faults: object) -> None:
        self._request("POST", FAULTS_PATH, json.dumps(faults).encode())

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.url}{path}", data=body, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: bytes = answer.read()
        return content
