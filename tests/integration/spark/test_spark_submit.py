"""`spark-submit` with a packed environment, as docs/how-to/spark-on-a-cluster.md has it, on one host.

The environment has tallystick and its libraries, and no PySpark. Executors unpack it; the driver, in client
mode, has it unpacked in its folder.
"""

import os
import subprocess
import tarfile
import venv
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home
from tests.support.reading import committed_records

from tallystick import Admin, Producer
from tallystick.admin.topics import NewTopic
from tallystick.spark.runtime.java import find_java_home
from tallystick.testing import EmbeddedBroker, SchemaRegistry

pytestmark = [pytest.mark.gate(0), pytest.mark.server, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]
ROWS = 400
CLEARED = ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
SECRET = "hunter2"

APPLICATION = '''
import sys
from pyspark.sql import SparkSession
from tallystick.spark import foreach_batch, register, to_topic

bootstrap, registry, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)
cluster = {"kafka.bootstrap.servers": bootstrap}
rows = (
    spark.readStream.format("tallystick")
    .options(**cluster, subscribe="in", startingOffsets="earliest")
    .load()
)

def look(batches):
    """Return where the worker's code is, in place of a row's key."""
    import pyarrow as pa
    import tallystick
    from tallystick.protocol.records import native
    for batch in batches:
        where = f"{tallystick.__file__} {native.codec is not None}".encode()
        yield pa.RecordBatch.from_pydict({"key": [where] * batch.num_rows, "value": batch.column("value")})

looked = rows.select("value").repartition(2).mapInArrow(look, "key binary, value binary")

def run(name, writer):
    writer = writer.option("checkpointLocation", f"file:{folder}/checkpoints/{name}")
    writer.trigger(availableNow=True).start().awaitTermination()

options = {**cluster, "transactional.id.prefix": "plain", "topic": "plain"}
run("plain", looked.writeStream.format("tallystick").options(**options))
both = {**cluster, "transactional.id.prefix": "each"}
write = foreach_batch(both, to_topic("each", key="key", value="value"))
run("each", looked.writeStream.foreachBatch(write))

spark.conf.set("spark.sql.ui.explainMode", "extended")  # the UI and the event log show options then
options = {**cluster, "transactional.id.prefix": "batch", "topic": "batch", "kafka.client.id": "shown"}
options |= {"value.format": "avro", "auto.register.schemas": "true", "schema.registry.url": registry}
options["schema.registry.basic.auth.user.info"] = "user:hunter2"
one = spark.range(1).selectExpr("string(id) as value")
one.write.format("tallystick").mode("append").options(**options).save()
spark.stop()
'''


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the environment and its archive, as the page does."""
    folder = tmp_path_factory.mktemp("packed")
    venv.create(folder / "environment", with_pip=True, symlinks=True)
    install = [folder / "environment" / "bin" / "python", "-m", "pip", "install", "--quiet"]
    libraries = ["numpy", "pyarrow", "pandas"]
    command = [*install, "-c", ROOT / "constraints.txt", f"{ROOT}[schemas]", *libraries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the environment cannot be made: {done.stderr[-500:]}")
    path = folder / "environment.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as packed:
        packed.add(folder / "environment", arcname=".")
    return path


def test_executors_run_the_packed_environment(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    home = tmp_path / "submit"
    (home / "environment").mkdir(parents=True)
    with tarfile.open(archive) as packed:
        packed.extractall(home / "environment", filter="fully_trusted")
    shown = tmp_path / "events"
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file:{shown}",
        "spark.ui.enabled": "false",
    }
    shown.mkdir()
    with EmbeddedBroker() as broker, SchemaRegistry() as registry:
        client = {"bootstrap.servers": broker.bootstrap_servers}
        with Admin(client) as admin:
            admin.create_topics([NewTopic(name=name) for name in ("in", "plain", "each", "batch")]).all()
        with Producer(client) as producer:
            for row in range(ROWS):
                producer.send("in", b"%d" % row)
        done = subprocess.run(
            [
                str(Path(_find_spark_home(), "bin", "spark-submit")),
                *("--master", "local-cluster[2,1,1024]"),
                *("--properties-file", str(ROOT / "deploy" / "spark.conf")),
                *("--archives", f"{archive}#environment"),
                *(part for name, text in settings.items() for part in ("--conf", f"{name}={text}")),
                *(str(tmp_path / "application.py"), broker.bootstrap_servers, registry.url, str(tmp_path)),
            ],
            cwd=home,
            env={
                **{name: text for name, text in os.environ.items() if name not in CLEARED},
                "JAVA_HOME": str(find_java_home()),
                "SPARK_HOME": _find_spark_home(),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        for name in ("plain", "each"):
            records = committed_records(client, name)
            assert sorted(int(record.value or b"-1") for record in records) == list(range(ROWS))
            places = {(record.key or b"").decode() for record in records}
            assert places
            for place in places:
                path, native = place.rsplit(" ", 1)
                assert "/environment/lib/" in path
                assert str(home) not in path
                assert native == "True"
        assert len(committed_records(client, "batch")) == 1
    logs = "".join(path.read_text(errors="replace") for path in shown.rglob("*") if path.is_file())
    assert "kafka.client.id=shown" in logs
    assert "schema.registry.basic.auth.user.info=*" in logs
    assert SECRET not in logs
