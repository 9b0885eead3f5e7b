"""A smoke test of an installed tallystick without its sources: `tools.dist` runs it in a clean environment.

    python smoke.py VERSION native|pure

It uses nothing but the standard library and the wheel, and is copied away from the repository before it runs.
"""

import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

TOPIC = "smoke"


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
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    check(said.split() == ["tallystick", version], f"tallystick --version: {said.strip()}")


def check_extension(wanted: str) -> None:
    """Check that the compiled codec is loaded, or that it is absent and everything works without it."""
    from tallystick.protocol.records import native  # noqa: PLC0415

    loaded = "pure" if native.codec is None else "native"
    check(loaded == wanted, f"record codec: {loaded}")


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
            done = producer.complete_transaction(state)
        check(True, f"prepared as {state}, completed: {done}")
        with Consumer({**servers, "group.id": TOPIC, "auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe([TOPIC])
            check(next(iter(consumer)).value == b"written", "read back, committed")


def main() -> int:
    version, wanted = sys.argv[1:]
    check_package(version)
    check_extension(wanted)
    check_transaction()
    return 0


if __name__ == "__main__":
    sys.exit(main())
