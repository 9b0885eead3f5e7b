"""Measure what tracing costs a client: python -m tools.bench.tracing [--before PATH] [--rounds N].

Three works: records sent one by one, records with a header of their own, and dual writes of one row (SQLite)
and one record. Their processor time in the client's process is measured, so that other programs disturb
little; the broker is another process. Every round runs each way once, in a process of its own and in an order
of its own, and the ratios are those of the medians.

    off        as installed
    api        switched on without an SDK: every span is a non-recording one
    unsampled  switched on with an SDK that samples nothing
    on         switched on with an SDK that records everything and exports nothing
    before     with the sources of `--before`, another checkout's `src`
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

Headers = tuple[tuple[str, bytes | None], ...]

RECORDS: Final = 20_000
RECORDS_PER_ROUND: Final = 1_000
WRITES: Final = 300
WARM_UP: Final = 50
ROOT: Final = Path(__file__).parents[2]
WORKS: Final = ("send", "send with headers", "dual write")
WAYS: Final = ("off", "api", "unsampled", "on")


def switch_on(way: str) -> None:
    """Switch tracing on in this process."""
    if way in ("off", "before"):
        return
    from tallystick.otel import TallystickInstrumentor  # noqa: PLC0415 - what is measured is its absence, too

    provider = None
    if way != "api":
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON  # noqa: PLC0415

        provider = TracerProvider(sampler=ALWAYS_ON if way == "on" else ALWAYS_OFF, shutdown_on_exit=False)
    TallystickInstrumentor().instrument(tracer_provider=provider)


def measure_sends(servers: str, headers: Headers) -> float:
    """Return microseconds of the calling thread's processor time for each `send`."""
    from tallystick import Producer  # noqa: PLC0415 - from the sources that are measured

    with Producer({"bootstrap.servers": servers}) as producer:
        producer.send("sends", b"warm").result(30)
        took_s = 0.0
        for _ in range(RECORDS // RECORDS_PER_ROUND):
            began_s = time.thread_time()
            for _ in range(RECORDS_PER_ROUND):
                producer.send("sends", b"x" * 100, headers=headers)
            took_s += time.thread_time() - began_s
            producer.flush()
    return took_s / RECORDS * 1e6


def measure_writes(servers: str, folder: str) -> float:
    """Return microseconds of processor time, of all threads, for each dual write."""
    from sqlalchemy import create_engine, text  # noqa: PLC0415
    from sqlalchemy.pool import StaticPool  # noqa: PLC0415

    from tallystick.dualwrite import DualWriter, SqlStore  # noqa: PLC0415

    engine = create_engine(f"sqlite:///{folder}/bench.db", poolclass=StaticPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE paid (n INTEGER)"))
    store = SqlStore(engine)
    store.create()
    with DualWriter(
        store, {"bootstrap.servers": servers, "transactional.id": folder.replace("/", ".")}
    ) as writer:
        writer.recover()
        began_s = 0.0
        for n in range(WARM_UP + WRITES):
            if n == WARM_UP:
                began_s = time.process_time()
            with writer.transaction() as txn:
                txn.session.execute(text("INSERT INTO paid VALUES (:n)"), {"n": n})
                txn.send("writes", b"x" * 100)
        return (time.process_time() - began_s) / WRITES * 1e6


def run_child(way: str, servers: str, before: str | None) -> tuple[float, ...]:
    """Measure one way in a process of its own: microseconds of each work."""
    sources = before if way == "before" else str(ROOT / "src")
    command = [sys.executable, "-m", "tools.bench.tracing", "--child", way, "--servers", servers]
    environment = {**os.environ, "PYTHONPATH": f"{sources}:{ROOT}"}
    answer = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
    return tuple(map(float, answer.stdout.split()))


def main() -> None:
    """Measure all ways, or one of them as a child."""
    parser = argparse.ArgumentParser(description="measure what tracing costs a client")
    parser.add_argument("--before", metavar="SRC", help="the folder `src` of another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default=",".join(WAYS), help="some of them, beside `before`")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--servers", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        switch_on(options.child)
        with tempfile.TemporaryDirectory() as folder:
            sends = [measure_sends(options.servers, headers) for headers in ((), (("kind", b"order"),))]
            print(*sends, measure_writes(options.servers, folder))
        return
    from tallystick.admin import Admin, NewTopic  # noqa: PLC0415 - a child must not load them first
    from tallystick.testing import EmbeddedBroker  # noqa: PLC0415

    ways = [*options.ways.split(","), *["before"] * bool(options.before)]
    results: dict[str, list[tuple[float, ...]]] = {way: [] for way in ways}
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker())
        admin = stack.enter_context(Admin({"bootstrap.servers": broker.bootstrap_servers}))
        admin.create_topics([NewTopic(name=name, partitions=1) for name in ("sends", "writes")]).all()
        for _ in range(options.rounds):
            for way in random.sample(ways, len(ways)):
                results[way].append(run_child(way, broker.bootstrap_servers, options.before))
    base = "before" if options.before else "off"
    medians = {
        way: [statistics.median(each) for each in zip(*rows, strict=True)] for way, rows in results.items()
    }
    print(" " * 10, *(f"{work:>18} ratio" for work in WORKS), "  (microseconds, medians)")
    for way in ways:
        pairs = zip(medians[way], medians[base], strict=True)
        print(f"{way:10}", *(f"{own_us:18.2f} {own_us / base_us:5.2f}" for own_us, base_us in pairs))


if __name__ == "__main__":
    main()
