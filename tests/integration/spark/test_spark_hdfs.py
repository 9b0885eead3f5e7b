"""Checkpoints on HDFS, in the driver's own Java: every check that a folder has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.reading import committed_records
from tools.servers.hdfs import find_hdfs_jars
from tools.servers.maven import Unavailable

from tallystick import Admin
from tallystick.admin.topics import NewTopic
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.gate(0), pytest.mark.server, pytest.mark.timeout(600)]

ROWS = 40

# A process of its own: the jars are on the class path from the start, and the default file system is HDFS.
CHILD = """
import json, socket, sys
from pathlib import Path
bootstrap, folder, jars = sys.argv[1:]
from tallystick import Producer
from tallystick.spark import foreach_batch
from tallystick.spark.session import spark_session

with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
home = f"hdfs://localhost:{port}"
settings = {"spark.driver.extraClassPath": jars, "spark.hadoop.fs.defaultFS": home}
settings["spark.sql.warehouse.dir"] = f"file:{folder}/warehouse"
spark = spark_session("hdfs", f"{folder}/spark", master="local[2]", settings=settings)
jvm = spark.sparkContext._jvm
configuration = jvm.org.apache.hadoop.conf.Configuration()
configuration.set("hdfs.minidfs.basedir", f"{folder}/dfs")
builder = getattr(jvm.org.apache.hadoop.hdfs, "MiniDFSCluster$Builder")(configuration)
cluster = builder.nameNodePort(port).numDataNodes(1).build()
cluster.waitActive()

def add(batch):
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for row in range(40):
            producer.send("in", b"%d-%d" % (batch, row))

def run(name, checkpoint, **more):
    options = {"kafka.bootstrap.servers": bootstrap, "checkpointLocation": checkpoint}
    source = {**options, "subscribe": "in", "startingOffsets": "earliest", "resume.from.prefix": name}
    rows = spark.readStream.format("tallystick").options(**source).load().select("value")
    sink = {**options, "topic": name, "transactional.id.prefix": name, **more}
    if name == "foreach":
        writer = rows.writeStream.foreachBatch(foreach_batch(sink))
    else:
        writer = rows.writeStream.format("tallystick").options(**sink)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    try:
        writer.start().awaitTermination()
    except Exception as exc:
        return str(exc)
    return "done"

said = {}
add(0)
for name, root in (("plain", f"{home}/checkpoints"), ("foreach", "/checkpoints")):
    said[name] = [run(name, f"{root}/{name}-a"), run(name, f"{root}/{name}-b")]
    said[name].append(run(name, f"{root}/{name}-b", onNewCheckpoint="resume"))
add(1)
for name in ("plain", "foreach"):
    said[name].append(run(name, f"/checkpoints/{name}-b", onNewCheckpoint="resume"))
add(2)
for name in ("plain", "foreach"):
    said[name].append(run(name, f"/checkpoints/{name}-b", **{"decisions.topic": "others"}))
files = cluster.getFileSystem()
for name in ("plain", "foreach"):
    folder_of_notes = jvm.org.apache.hadoop.fs.Path(f"/checkpoints/{name}-b/tallystick")
    statuses = files.listStatus(folder_of_notes)
    said[f"notes of {name}"] = sorted(each.getPath().getName() for each in statuses)
Path(folder, "said.json").write_text(json.dumps(said))
spark.stop()
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def hdfs_jars() -> str:
    try:
        return find_hdfs_jars()
    except Unavailable as exc:
        pytest.skip(str(exc))


def test_checks_and_notes_are_those_of_a_folder(hdfs_jars: str, tmp_path: Path) -> None:
    """[SPK-3] [SPK-27] [SPK-29] With the scheme, and without one where HDFS is Hadoop's default."""
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    with EmbeddedBroker() as broker:
        client = {"bootstrap.servers": broker.bootstrap_servers}
        with Admin(client) as admin:
            admin.create_topics([NewTopic(name=name) for name in ("in", "plain", "foreach")]).all()
        arguments = [broker.bootstrap_servers, str(tmp_path), hdfs_jars]
        done = subprocess.run(
            [sys.executable, str(child), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        said = json.loads((tmp_path / "said.json").read_text())
        for name in ("plain", "foreach"):
            first, new, resumed, more, moved = said[name]
            assert (first, resumed, more) == ("done", "done", "done")
            assert "UnknownCheckpoint" in new
            assert "DecisionsMissing" in moved
            values = [record.value for record in committed_records(client, name)]
            assert sorted(values, key=str) == sorted(
                (b"%d-%d" % (batch, row) for batch in range(2) for row in range(ROWS)), key=str
            )
            assert said[f"notes of {name}"][0] == "decisions.json"
            assert len(said[f"notes of {name}"]) == 2
