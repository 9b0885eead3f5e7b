"""MariaDB, ZooKeeper and PgBouncer from Debian's packages, unpacked into .cache/ and run from there.

    python -m tools.servers.debian_servers fetch          # into .cache/debian-servers/, once

Nothing is installed: apt resolves and downloads with lists and archives of its own, and dpkg only unpacks. So
it needs no root, and the system stays as it is. Standard library only.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).parents[2] / ".cache" / "debian-servers"
FETCH_SECONDS_MAX: Final = 100

# Dependencies that the system lacks are added.
PACKAGES: Final = ("mariadb-server-core", "libzookeeper-java", "pgbouncer")
_PROGRAMS: Final = ("apt-get", "dpkg")
_JARS: Final = (
    "zookeeper",
    "zookeeper-jute",
    "netty-buffer",
    "netty-codec",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "metrics-core",
    "snappy-java",
    "slf4j-api",
    "slf4j-simple",
)


class Unavailable(Exception):
    """A server is not available on this machine; the text says what is missing."""


def fetch() -> Path:
    """Return the folder of the unpacked packages, which are downloaded the first time.

    Safe to call from several processes at once: the first downloads, the others wait.

    Raises:
        Unavailable: this is no Debian, or apt could not download them.
    """
    root, mark = CACHE / "root", CACHE / "complete"
    packages = "\n".join(PACKAGES)

    def is_complete() -> bool:
        return mark.exists() and mark.read_text() == packages

    if is_complete():
        return root
    if lacking := [program for program in _PROGRAMS if shutil.which(program) is None]:
        raise Unavailable(f"{' and '.join(lacking)} not on the PATH (these servers are Debian's packages)")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete():
            shutil.rmtree(root, ignore_errors=True)
            _take(root)
            mark.write_text(packages)
    return root


def find_mariadb() -> tuple[Path, dict[str, str]]:
    """Return the path of mariadbd, and the environment in which it finds its libraries.

    Raises:
        Unavailable: the packages are not available.
    """
    return _find_program("mariadbd")


def find_pgbouncer() -> tuple[Path, dict[str, str]]:
    """Return the path of pgbouncer, and the environment in which it finds its libraries.

    Raises:
        Unavailable: the packages are not available.
    """
    return _find_program("pgbouncer")


def find_zookeeper_class_path() -> str:
    """Return the class path of ZooKeeper's server; jars that the system has are taken from there.

    Raises:
        Unavailable: the packages are not available.
    """
    if shutil.which("java") is None:
        raise Unavailable("java is not on the PATH (ZooKeeper needs Java 8 or later)")
    folders = [fetch() / "usr" / "share" / "java", Path("/usr/share/java")]
    paths = {
        jar: next((f / f"{jar}.jar" for f in folders if (f / f"{jar}.jar").exists()), None) for jar in _JARS
    }
    if lacking := [jar for jar, path in paths.items() if path is None]:
        raise Unavailable(f"Debian's libzookeeper-java came without {', '.join(lacking)}.jar")
    return os.pathsep.join(str(path) for path in paths.values())


def _find_program(name: str) -> tuple[Path, dict[str, str]]:
    root = fetch()
    program = root / "usr" / "sbin" / name
    if program.exists():
        libraries = sorted({str(file.parent) for file in root.rglob("*.so*")})
        return program, {"LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    # apt downloads nothing of what the system has.
    if (system_program := shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")) is None:
        raise Unavailable(f"{name} is neither installed nor in Debian's packages")
    return Path(system_program), {}


def _take(root: Path) -> None:
    apt = CACHE / "apt"
    for folder in ("lists/partial", "archives/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    # Folders of our own; no switch to another account, no lock of the system.
    command = ["apt-get", "-qq", "-y"]
    for option in (
        f"Dir::State::Lists={apt}/lists",
        f"Dir::Cache={apt}",
        "APT::Sandbox::User=",
        "Debug::NoLocking=1",
        "Acquire::http::Timeout=20",
    ):
        command += ["-o", option]
    # Its hooks may complain about these folders: only the downloaded packages matter.
    _run([*command, "update"])
    download = _run([*command, "--no-install-recommends", "--download-only", "install", *PACKAGES])
    if download.returncode:
        raise Unavailable(f"apt-get could not download {' and '.join(PACKAGES)}:\n{download.stderr[-2000:]}")
    root.mkdir()
    for package in sorted((apt / "archives").glob("*.deb")):
        unpacking = _run(["dpkg", "-x", str(package), str(root)])
        if unpacking.returncode:
            raise Unavailable(f"dpkg could not unpack {package.name}:\n{unpacking.stderr[-2000:]}")
    shutil.rmtree(apt)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as exc:
        raise Unavailable(f"{' '.join(command[:1])} did not finish within {FETCH_SECONDS_MAX} s") from exc


def main(arguments: Sequence[str]) -> int:
    """Run the command line of this file."""
    if list(arguments) != ["fetch"]:
        print(__doc__)
        return 2
    try:
        print(f"{' and '.join(PACKAGES)} are in {fetch()}")
    except Unavailable as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
