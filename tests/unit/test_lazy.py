"""What is imported late: without its library, it says how to get it."""

import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tallystick import _lazy

ROOT = Path(__file__).parents[2]
WITHOUT = """
import sys


class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "{library}":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Without())
"""


@pytest.mark.parametrize(
    ("library", "name", "extra"),
    [
        ("sqlalchemy", "dualwrite.SqlStore", "sql"),
        ("kazoo", "dualwrite.ZooKeeperStore", "zookeeper"),
        ("rocksdict", "dualwrite.RocksStore", "rocksdb"),
        ("pyarrow", "dualwrite.DeltaStore", "delta"),
        ("django", "dualwrite.DjangoStore", "django"),
        ("pyspark", "spark.register", "spark"),
        ("pyspark", "pipeline.Pipeline", "spark"),
    ],
)
@pytest.mark.slow
def test_a_name_whose_library_is_missing_says_what_to_install(library: str, name: str, extra: str) -> None:
    package, _, public = name.partition(".")
    program = f"{WITHOUT.format(library=library)}from tallystick.{package} import {public}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    told = f"MissingLibrary: {library} is not installed: pip install '{_lazy.find_origin()}[{extra}]'"
    assert done.stderr.splitlines()[-1].endswith(told)


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("library", "words", "extra"),
    [
        ("pyspark", ["run", "x.toml"], "spark"),
        ("psycopg", ["demo"], "demo"),
        ("uvicorn", ["console", "--listen", "127.0.0.1:0", "--bootstrap-server", "127.0.0.1:1"], "console"),
        ("sqlalchemy", ["transactions", "resolve", "--store", "sqlite:////tmp/none.db", "--dry-run"], "sql"),
    ],
)
def test_a_command_whose_library_is_missing_says_so_in_a_line(
    library: str, words: list[str], extra: str
) -> None:
    program = (
        f"{WITHOUT.format(library=library)}from tallystick.cli import main; sys.exit(main.main({words}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    told = f"tallystick: {library} is not installed: pip install '{_lazy.find_origin()}[{extra}]'\n"
    assert (done.returncode, done.stderr) == (2, told)


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("library", "url", "package"),
    [
        ("psycopg", "postgresql+psycopg://me:hush@127.0.0.1:1/shop", f"'{_lazy.find_origin()}[psycopg]'"),
        ("psycopg2", "postgresql+psycopg2://me:hush@127.0.0.1:1/shop", "psycopg2-binary"),
        ("pymysql", "mysql+pymysql://me:hush@127.0.0.1:1/shop", f"'{_lazy.find_origin()}[pymysql]'"),
        ("MySQLdb", "mysql://me:hush@127.0.0.1:1/shop", "mysqlclient"),
        ("asyncpg", "postgresql+asyncpg://me:hush@127.0.0.1:1/shop", f"'{_lazy.find_origin()}[asyncpg]'"),
        ("asyncmy", "mysql+asyncmy://me:hush@127.0.0.1:1/shop", f"'{_lazy.find_origin()}[asyncmy]'"),
        ("aiosqlite", "sqlite+aiosqlite:////tmp/none.db", f"'{_lazy.find_origin()}[aiosqlite]'"),
    ],
)
def test_a_database_whose_driver_is_missing_names_its_package(library: str, url: str, package: str) -> None:
    words = ["transactions", "resolve", "--bootstrap-server", "127.0.0.1:1", "--store", url, "--dry-run"]
    program = (
        f"{WITHOUT.format(library=library)}from tallystick.cli import main; sys.exit(main.main({words}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    told = f"tallystick: --store: {library} is not installed: pip install {package}\n"
    assert (done.returncode, done.stderr) == (2, told)


@pytest.mark.slow
def test_the_console_and_sparks_sink_name_the_package_of_a_driver_too() -> None:
    program = (
        f"{WITHOUT.format(library='psycopg')}"
        "from tallystick.console.collect.failures import describe_failure\n"
        "from tallystick.console.collect.sql_rows import open_sql_rows\n"
        "from tallystick.spark.decisions.database import DecisionDatabase, get_engine\n"
        "url = 'postgresql://me:hush@127.0.0.1:1/shop'\n"
        "where = DecisionDatabase(url=url)\n"
        "for opener in (lambda: open_sql_rows(url, 'shop', 1), lambda: get_engine(where)):\n"
        "    try:\n"
        "        opener()\n"
        "    except ImportError as exc:\n"
        "        print(describe_failure(exc))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    told = f"psycopg is not installed: pip install '{_lazy.find_origin()}[psycopg]'"
    assert (done.stdout.splitlines(), done.stderr) == ([told, told], "")


def test_every_extra_is_one_of_the_package() -> None:
    packages = {"google": "protobuf"}  # where a module has not the name of its package
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for library, extra in _lazy._EXTRAS.items():
        brought = " ".join(offered[extra]).replace("-", "_").replace("psycopg[", "psycopg ").lower()
        assert packages.get(library, library) in brought, f"{extra} does not bring {library}"


def test_other_modules_that_are_missing_are_no_matter_of_installing() -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere") as caught:
        _lazy.load("tallystick.nowhere")
    assert not isinstance(caught.value, _lazy.MissingLibrary)


@pytest.mark.parametrize(
    ("direct_url", "origin"),
    [
        ('{"url": "file:///home/me/a%20checkout", "dir_info": {"editable": true}}', "/home/me/a checkout"),
        (
            '{"url": "file:///tmp/tallystick-0.2.0-py3-none-any.whl"}',
            "/tmp/tallystick-0.2.0-py3-none-any.whl",
        ),
        ('{"url": "https://example.org/tallystick.git", "vcs_info": {}}', "tallystick"),
        ("not JSON", "tallystick"),
        (None, "tallystick"),
    ],
)
def test_pip_is_given_what_this_package_was_installed_from(
    direct_url: str | None, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the name is on an index, `pip install 'tallystick[sql]'` finds nothing."""
    monkeypatch.setattr(metadata.Distribution, "read_text", lambda *_: direct_url, raising=False)
    monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda *_: direct_url)
    assert _lazy.find_origin() == origin
    assert str(_lazy.MissingLibrary("sqlalchemy", "sql")).endswith(shlex.quote(f"{origin}[sql]"))


def test_every_driver_with_an_extra_is_brought_by_it_and_by_nothing_that_does_not_need_it() -> None:
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for driver in _lazy._DRIVERS:
        assert offered[driver][0] == "tallystick[sql]"
        assert offered[driver][1].startswith(driver)
