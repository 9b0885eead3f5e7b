"""The public API reveals the types that its documentation promises (style R10)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from tallystick.testing import EmbeddedBroker, FakeClock, eventually

with EmbeddedBroker() as broker:
    reveal_type(broker)
    reveal_type(broker.bootstrap_servers)
reveal_type(eventually(lambda: 7))
reveal_type(FakeClock().now_ms())
"""

CLIENTS = """
import tallystick
from tallystick import Consumer, PreparedTxnState, Producer, TopicPartition

with Producer({"bootstrap.servers": "b:1"}) as producer:
    reveal_type(producer)
    producer.send("t", b"x", on_delivery=lambda delivery: reveal_type(delivery))
    reveal_type(producer.send("t", b"x").result(1.0))
    reveal_type(producer.send_batch("t", [b"x"]).result().parts[0].first_offset)
    reveal_type(producer.prepare_transaction())
    reveal_type(producer.complete_transaction(PreparedTxnState("1:2")))
    reveal_type(producer.mode)
with Consumer({"bootstrap.servers": "b:1"}) as consumer:
    reveal_type([record.value for record in consumer.poll(1.0)])
    reveal_type(next(iter(consumer)).value)
    reveal_type(consumer.committed([TopicPartition("t", 0)]))
    producer.send_offsets_to_transaction({TopicPartition("t", 0): 7}, consumer.group_metadata())


async def run() -> None:
    async with tallystick.aio.Producer({}) as producer:
        reveal_type(await producer.send("t"))
        reveal_type(await (await producer.send("t")))
        reveal_type(await producer.prepare_transaction())
    async with tallystick.aio.Consumer({}) as consumer:
        async for record in consumer:
            reveal_type(record.offset)


class Order: ...


def write(obj: Order, context: object) -> bytes:
    return b""


with Producer[bytes, Order]({"value.serializer": write}) as orders:
    orders.send("t", Order())
with Consumer[str, Order]({}) as typed:
    reveal_type([(record.key, record.value) for record in typed.poll(1.0)])
"""

ADMIN = """
from tallystick import TopicPartition
from tallystick.admin import LATEST, AbortSpec, AclFilter, Admin, ConfigResource, NewTopic, ResourceType

at = TopicPartition("t", 0)
with Admin({"bootstrap.servers": "b:1"}) as admin:
    reveal_type(admin.create_topics([NewTopic(name="t")]).one("t"))
    reveal_type(admin.describe_configs([ConfigResource(ResourceType.TOPIC, "t")]).failures)
    reveal_type(admin.plan_abort(AbortSpec(partition=at, start_offset=7)).case.verdict)
    reveal_type(admin.list_offsets({at: LATEST}).found)
    reveal_type(admin.describe_acls(AclFilter()))
"""

LISTENERS = """
import tallystick
from tallystick import Consumer, RebalanceListener, TopicPartition

Partitions = frozenset[TopicPartition]


class Assigned(RebalanceListener):
    def on_partitions_assigned(self, partitions: Partitions) -> None: ...


class Awaited(tallystick.aio.RebalanceListener):
    async def on_partitions_revoked(self, partitions: Partitions) -> None: ...


with Consumer({"bootstrap.servers": "b:1"}) as consumer:
    consumer.subscribe(["t"], Assigned())
    reveal_type(Assigned().on_partitions_lost)
tallystick.aio.Consumer({}).subscribe(["t"], Awaited())
reveal_type(Awaited())
"""

TRACING = """
from tallystick import Consumer
from tallystick.otel import TallystickInstrumentor, process

TallystickInstrumentor().instrument()
with Consumer({"bootstrap.servers": "b:1"}) as consumer, process(next(iter(consumer))) as span:
    reveal_type(span)
"""

MISTAKES = """
producer.send("t", "text")
orders.send("t", b"x")
consumer.committed(["t"])
tallystick.no_such_name
"""

REVEALED = [
    '"tallystick.broker.embedded.EmbeddedBroker"',
    '"str"',
    '"int"',
    '"TimestampMs"',
]

REVEALED_OF_CLIENTS = [
    '"Producer[bytes, bytes]"',
    '"Delivery"',
    '"RecordMetadata"',
    '"Offset | None"',
    '"PreparedTxnState"',
    '"Completion"',
    '"Mode | None"',
    '"list[bytes | None]"',
    '"bytes | None"',
    '"dict[TopicPartition, OffsetAndMetadata | None]"',
    '"Delivery"',
    '"RecordMetadata"',
    '"PreparedTxnState"',
    '"int"',
    '"list[tuple[str | None, of_clients.Order | None]]"',
]

REVEALED_OF_ADMIN = [
    '"CreatedTopic"',
    '"typing.Mapping[ConfigResource, ClientError]"',
    '"HangingVerdict"',
    '"typing.Mapping[TopicPartition, OffsetAndTimestamp | None]"',
    '"tuple[Acl, ...]"',
]

# One callback is enough, in both facades.
REVEALED_OF_LISTENERS = [
    '"def (partitions: frozenset[TopicPartition])"',
    '"of_listeners.Awaited"',
]

REVEALED_OF_TRACING = ['"opentelemetry.trace.span.Span"']

# Where public names are defined; what a user reads is the name.
PLACES = re.compile(r"tallystick\.(client|kernel|admin)\.(\w+\.)+")


# Kept between runs, apart from the gate's own: the library is read here as a user's mypy reads it, installed
# and without this project's settings, and a cache made under other settings would be thrown away each time.
CACHE = Path(__file__).parents[2] / ".mypy_cache" / "public-types"

PROGRAMS = {
    "testing": PROGRAM,
    "clients": CLIENTS,
    "admin": ADMIN,
    "listeners": LISTENERS,
    "tracing": TRACING,
    "mistakes": CLIENTS + MISTAKES,
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return what mypy says of each program in its strict mode, from one run."""
    folder = tmp_path_factory.mktemp("programs")
    for name, program in PROGRAMS.items():
        (folder / f"of_{name}.py").write_text(program)
    files = [f"of_{name}.py" for name in PROGRAMS]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(CACHE), *files],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    lines = done.stdout.splitlines()
    return {name: [line for line in lines if line.startswith(f"of_{name}.py:")] for name in PROGRAMS}


@pytest.mark.gate(0)
@pytest.mark.parametrize(
    ("name", "revealed"),
    [
        ("testing", REVEALED),
        ("clients", REVEALED_OF_CLIENTS),
        ("admin", REVEALED_OF_ADMIN),
        ("listeners", REVEALED_OF_LISTENERS),
        ("tracing", REVEALED_OF_TRACING),
    ],
)
def test_revealed_types(name: str, revealed: list[str], checked: dict[str, list[str]]) -> None:
    said = checked[name]
    types = [PLACES.sub("", line.partition("Revealed type is ")[2]) for line in said if "Revealed" in line]
    assert types == revealed, "\n".join(said)
    assert not [line for line in said if "error:" in line], "\n".join(said)


@pytest.mark.gate(0)
def test_mistakes_are_found(checked: dict[str, list[str]]) -> None:
    errors = [line for line in checked["mistakes"] if "error:" in line]
    found = [line.rpartition("  ")[2] for line in errors]
    assert found == ["[arg-type]", "[arg-type]", "[list-item]", "[attr-defined]"], "\n".join(errors)
