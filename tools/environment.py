"""Install what a make target needs into .venv, with uv where it is on the PATH, else with pip.

    $ python3 tools/environment.py dev        # for make test and all targets for developers
    $ python3 tools/environment.py run        # for make run: see it, and install Spark meanwhile

It runs on a bare Python: nothing but the standard library is there yet.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
WAIT_S = 10.0
COLUMNS = 88
# One process, and January: a verdict within minutes.
FLIGHTS_OPTIONS = ("--master", "local[2, 4]", "--rows", "27004")
# What pip and uv print of a package that comes.
COLLECTED = re.compile(r"^(?:Collecting| \+) ([\w.-]+)", re.MULTILINE)


def make_environment() -> None:
    """Make the virtual environment, without pip if that of this Python can install into it: 6 s less.

    One without its Python, which was removed or never came, is cleared away: uv refuses the folder, and venv
    leaves links in it that lead nowhere.
    """
    uv, venv = shutil.which("uv"), [sys.executable, "-m", "venv", str(VENV)]
    if not PYTHON.exists():
        print(f"Making {VENV.name} with Python {sys.version.split()[0]}", flush=True)
        shutil.rmtree(VENV, ignore_errors=True)
        by_uv = [str(uv), "venv", "--quiet", "--python", sys.executable, str(VENV)]
        subprocess.run(by_uv if uv else [*venv, "--without-pip"], check=True)
    if not (uv or has_pip_for_others() or PYTHON.with_name("pip").exists()):
        subprocess.run(venv, check=True)


def has_pip_for_others() -> bool:
    """Return whether this Python has a pip that installs into another one's environment: 22.3 or later."""
    try:
        major, minor = map(int, version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return False
    return (major, minor) >= (22, 3)


def install_command(requirements: Sequence[str]) -> list[str]:
    """Return the command that installs these, at the versions that the tests have seen."""
    words = ["-c", "constraints.txt", *requirements]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", str(PYTHON), *words]
    pip = [sys.executable, "-m", "pip", "--python", str(PYTHON)]
    if not has_pip_for_others():
        pip = [str(PYTHON), "-m", "pip"]
    # Modules are compiled when they are imported, as with uv: to compile all of Spark's takes 20 s.
    options = ["--no-compile", "--disable-pip-version-check", "--progress-bar", "off"]
    return [*pip, "install", *options, *words]


def list_requirements(extra: str) -> list[str]:
    """Return the packages of an extra and of the extras that it names, without tallystick itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements: list[str] = []
    for each in project["optional-dependencies"][extra]:
        if names := re.fullmatch(r"tallystick\[(.+)\]", each):
            for name in names[1].split(","):
                requirements += list_requirements(name)
        else:
            requirements.append(each)
    return requirements


def install(what: str, requirements: Sequence[str]) -> None:
    """Install in the foreground, and name each package that comes."""
    print(f"Installing {what} into {VENV.name}:", end="", flush=True)
    started_at = time.monotonic()
    command = install_command(requirements)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if name := COLLECTED.match(line):
            print(f" {name[1]}", end="", flush=True)
    print(f" ({time.monotonic() - started_at:.0f} s)" if process.wait() == 0 else "", flush=True)
    if process.returncode != 0:
        sys.exit("".join(lines[-20:]))


def install_behind(requirements: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start to install while something else is shown."""
    with LOG.open("wb") as log:
        return subprocess.Popen(
            ["nice", *install_command(requirements)], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )


def last_line(text: str) -> str:
    """Return the last line that an installer has finished, for one line of a terminal."""
    lines = [line.strip() for line in text[: text.rfind("\n") + 1].splitlines()]
    return next((line for line in reversed(lines) if line), "...")[:COLUMNS]


def wait_for(process: "subprocess.Popen[bytes]") -> None:
    """Wait for an installation, and say every ten seconds how far it is."""
    started_at = time.monotonic()
    while process.poll() is None:
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            line = last_line(LOG.read_text(errors="replace"))
            print(f"{time.monotonic() - started_at:6.0f} s  {line}", flush=True)
    if process.returncode != 0:
        sys.exit("".join(LOG.read_text(errors="replace").splitlines(keepends=True)[-20:]))


def is_current(stamp: Path) -> bool:
    """Return whether an installation was made after the last change of what it installs."""
    return stamp.exists() and stamp.stat().st_mtime > (ROOT / "pyproject.toml").stat().st_mtime


def prepare_for_developers() -> None:
    """Install everything that tests, documentation and measurements need."""
    make_environment()
    install("tallystick, its tests and its documentation (1.9 GB)", ["pip", "-e", ".[dev]"])


def run_demo() -> None:
    """Show the quick demo as soon as it can run, and the flights through Spark after it."""
    make_environment()
    tallystick = str(PYTHON.with_name("tallystick"))
    ready = VENV / ".demo"
    is_ready = any(map(is_current, (ready, VENV / ".ready")))
    if not is_ready:
        install("tallystick with SQLAlchemy (150 MB)", ["-e", ".[sql]"])
    spark = None if is_ready else install_behind(["pip", *list_requirements("demo")])
    if spark is not None:
        print(f"Spark, PostgreSQL and a Delta table (1.3 GB) are installed meanwhile: {LOG.name}", flush=True)
    try:
        subprocess.run([tallystick, "demo", "--quick"], check=True)
        if spark is not None:
            print("Now with Spark:", flush=True)
            wait_for(spark)
            ready.touch()
    finally:
        if spark is not None and spark.poll() is None:
            spark.terminate()
    os.execv(tallystick, [tallystick, "demo", *FLIGHTS_OPTIONS])


def main() -> None:
    """Run the target that the command line names."""
    try:
        {"dev": prepare_for_developers, "run": run_demo}[sys.argv[1]]()
    except KeyboardInterrupt:
        sys.exit(130)
    except subprocess.CalledProcessError as exc:  # it has said why
        sys.exit(exc.returncode)


if __name__ == "__main__":
    main()
