"""Spark's Javas start from an archive of classes where there is one, and without it as before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.spark.class_archive import NoArchive, find_class_archive, list_jvm_options, make_class_archive
from tallystick.spark.runtime.java import find_java_home

SPARK = """
import sys
from pathlib import Path
from tallystick.spark import spark_session

settings = {"spark.driver.extraJavaOptions": f"-Xlog:class+load:file={sys.argv[2]}"}
spark = spark_session("archive", Path(sys.argv[1]), master="local[1]", settings=settings)
print("counted", spark.range(1000).selectExpr("sum(id)").first()[0])
spark.stop()
"""


def started(folder: Path, cache: Path) -> tuple[str, int]:
    """What a session there said, and how many classes of Spark's its Java took from an archive."""
    loaded = folder / "loaded"
    run = [sys.executable, "-c", SPARK, str(folder), str(loaded)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=200, check=True)
    lines = loaded.read_text().splitlines()
    archived = [line for line in lines if "org.apache.spark" in line and "shared objects file (top)" in line]
    return done.stdout + done.stderr, len(archived)


@pytest.mark.slow
def test_classes_come_from_the_archive(tmp_path: Path) -> None:
    """Made once; the second time it is there."""
    archive = make_class_archive()
    assert archive == make_class_archive() == find_class_archive()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    said, from_archive = started(tmp_path, cache)
    assert "counted 499500" in said
    assert from_archive > 1000


@pytest.mark.slow
def test_one_that_does_not_fit_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(find_java_home()))
    archive = find_class_archive()
    assert tmp_path in archive.parents
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"of another Java")
    assert str(archive) in list_jvm_options(archive)
    said, from_archive = started(tmp_path, tmp_path)
    assert "counted 499500" in said
    assert from_archive == 0
    assert "archive" not in said.lower().replace(str(tmp_path).lower(), "")


def test_another_installation_has_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the same place, of the same version: Java would refuse the archive of the one before."""
    jar = tmp_path / "jars" / "spark-core.jar"
    jar.parent.mkdir()
    jar.write_bytes(b"")
    monkeypatch.setattr("pyspark.__file__", str(tmp_path / "__init__.py"))
    before = find_class_archive()
    assert find_class_archive() == before
    os.utime(jar, (1, 1))
    assert find_class_archive() != before


def test_none_is_asked_for_where_there_is_none(tmp_path: Path) -> None:
    assert list_jvm_options(tmp_path / "none.jsa") == ""


def test_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who called goes on without: it is only slower."""
    java = str(find_java_home())
    (tmp_path / "tallystick").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", java)
    with pytest.raises(NoArchive, match=r"no spark-.*\.jsa"):
        make_class_archive()
