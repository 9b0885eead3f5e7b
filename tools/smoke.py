"""A smoke test of an installed tallystick without its sources: `tools.dist` runs it in a clean environment.

    python smoke.py VERSION native|pure

It uses nothing but the standard library and the wheel, and is copied away from the repository before it runs.
"""

import shlex
import subprocess
import sys
from importlib import import_module, metadata, resources
from pathlib import Path

TOPIC = "smoke"

# What needs each extra: libraries that it installs, and public names of ours that import them.
EXTRAS = {
    "arrow": ("numpy", "pyarrow"),
    "sql": ("tallystick.dualwrite:SqlStore", "tallystick.dualwrite:AsyncSqlStore"),
    "django": ("tallystick.dualwrite:DjangoStore",),
    "rocksdb": ("tallystick.dualwrite:RocksStore",),
    "delta": ("deltalake", "tallystick.dualwrite:DeltaStore", "tallystick.lake:delta"),
    "zookeeper": ("tallystick.dualwrite:ZooKeeperStore",),
    "metrics": ("prometheus_client",),
    "re2": ("re2",),
    "security": ("cryptography", "jwt"),
    "top": ("textual", "tallystick.console:run_top"),
    "spark": ("pyspark", "pandas", "tallystick.spark:KafkaDataSource", "tallystick.pipeline:Pipeline"),
    "schemas": ("fastavro", "confluent_kafka.schema_registry"),
    "iceberg": ("pyiceberg", "tallystick.lake:iceberg"),
    "console": ("uvicorn", "tallystick.console:serve"),
    "otel": ("tallystick.otel:TallystickInstrumentor",),
    "demo": ("tallystick.demo:DemoRun",),
    "aiosqlite": ("aiosqlite",),
    "asyncmy": ("asyncmy",),
    "asyncpg": ("asyncpg",),
    "psycopg": ("psycopg",),
    "pymysql": ("pymysql",),
}


def check(holds: bool, claim: str) -> None:
    """Print the claim, and exit with an error unless it holds."""
    print(f"  {'ok' if holds else 'FAILED':8}{claim}")
    if not holds:
        sys.exit(1)


def check_package(version: str) -> None:
    """Check that the installed package is complete and that every part reports the same version."""
    import tallystick  # noqa: PLC0415 - what is imported, and when, is what is tested

    check(Path(tallystick.__file__).is_relative_to(sys.prefix), f"imported from {sys.prefix}")
    versions = {tallystick.__version__, metadata.version("tallystick")}
    check(versions == {version}, f"version {version} in the package and its metadata")
    check(resources.files("tallystick").joinpath("py.typed").is_file(), "py.typed is there")
    command = Path(sys.executable).with_name("tallystick")
    output = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    check(output.split() == ["tallystick", version], f"tallystick --version: {output.strip()}")


def check_extension(codec: str) -> None:
    """Check that the compiled codec is loaded, or that it is absent and everything works without it."""
    from tallystick.protocol.records import native  # noqa: PLC0415

    codec_name = "pure" if native.codec is None else "native"
    check(codec_name == codec, f"record codec: {codec_name}")


def check_extras() -> None:
    """Check that each extra imports what it names, or that the error is the sentence that names the extra."""
    from tallystick import _lazy  # noqa: PLC0415

    extras = set(metadata.metadata("tallystick").get_all("Provides-Extra") or ())
    check(EXTRAS.keys() <= extras, f"extras in the metadata: {', '.join(EXTRAS)}")
    for extra, names in EXTRAS.items():
        for name in names:
            module, _, attribute = name.partition(":")
            try:
                if attribute:
                    getattr(import_module(module), attribute)
                else:
                    _lazy.load(module)
            except _lazy.MissingLibrary as exc:
                sentence = f"pip install {shlex.quote(f'{_lazy.find_origin()}[{extra}]')}"
                check(sentence in str(exc), f"extra {extra}, absent: {exc}")
            else:
                check(True, f"extra {extra}: {attribute or module}")


def check_transaction() -> None:
    """Start a broker; prepare a transaction, commit it, and read what it wrote."""
    from tallystick import Consumer, Producer  # noqa: PLC0415
    from tallystick.testing import EmbeddedBroker  # noqa: PLC0415

    with EmbeddedBroker() as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        settings = {"transactional.id": TOPIC, "transaction.two.phase.commit.enable": True}
        with Producer({**servers, **settings}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(TOPIC, b"written")
            state = producer.prepare_transaction()
            completion = producer.complete_transaction(state)
        check(True, f"prepared as {state}, completed: {completion}")
        with Consumer({**servers, "group.id": TOPIC, "auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe([TOPIC])
            check(next(iter(consumer)).value == b"written", "read back, committed")


def main() -> int:
    version, codec = sys.argv[1:]
    check_package(version)
    check_extension(codec)
    check_extras()
    check_transaction()
    return 0


if __name__ == "__main__":
    sys.exit(main())
