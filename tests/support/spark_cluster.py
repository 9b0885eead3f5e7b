"""A standalone Spark cluster on loopback addresses: a master and two workers as separate processes.

Each worker has its own address, so that Spark takes them for two hosts: it starts no speculative copy of a
task on the host that runs the first one. Any of them can be killed and restarted.
"""

import json
import os
import shutil
import subprocess
import urllib.request
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

import psutil
from tools.servers.broker_process import find_free_port

from tallystick.demo.postgres import kill_with_parent
from tallystick.spark.runtime.java import find_java_home
from tallystick.testing import eventually

MASTER: Final = "127.0.0.1"
WORKERS: Final = ("127.0.0.2", "127.0.0.3")
# Slots, not processors: an attempt that Spark has given up keeps its slot until its Python ends.
_CORES: Final = 4
_DRIVERS: Final = 2
"""Drivers at a time: a stalled one keeps its executors, and the other one would wait for them."""
_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.master.rest.enabled=false"
_START_S: Final = 60.0


class Cluster:
    """Two workers, one executor each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._page = find_free_port(), find_free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"spark://{MASTER}:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a session on the cluster. Slow tasks get a speculative copy."""
        return {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.executor.cores": str(_CORES),
            "spark.cores.max": str(_CORES * len(WORKERS)),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.locality.wait": "0s",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.minTaskRuntime": "300ms",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.quantile": "0.5",
        }

    def start(self) -> None:
        """Start what is not running, and wait until the master knows both workers."""
        self._run("master", "master.Master", MASTER, ["--port", str(self.port)], self._page)
        eventually(lambda: self._known() is not None, _START_S)
        for address in WORKERS:
            more = [
                "--cores",
                str(_CORES * _DRIVERS),
                "--memory",
                "2g",
                "--work-dir",
                str(self.folder / address),
                self.url,
            ]
            self._run(address, "worker.Worker", address, more, 0)
        eventually(lambda: self._known() == len(WORKERS), _START_S)

    def _run(self, name: str, program: str, address: str, more: list[str], page: int) -> None:
        running = self._processes.get(name)
        if running is not None and running.poll() is None:
            return
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        home = Path(spec.origin).parent
        self.folder.mkdir(parents=True, exist_ok=True)
        where = ["--host", address, "--webui-port", str(page)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                kill_with_parent(
                    [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}", *where, *more]
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={
                    **os.environ,
                    "JAVA_HOME": str(find_java_home()),
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": address,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": _OPTIONS,
                },
                start_new_session=True,
            )

    def _known(self) -> int | None:
        """Return the number of workers the master has; None if it does not answer."""
        page = f"http://{MASTER}:{self._page}/json/"
        with suppress(OSError, ValueError), urllib.request.urlopen(page, timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
        return None

    def close(self) -> None:
        for process in self._processes.values():
            with suppress(psutil.NoSuchProcess):
                family = psutil.Process(process.pid)
                for each in (family, *family.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
            process.wait()
        for address in WORKERS:
            shutil.rmtree(self.folder / address, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
