"""Faults in the processes of a Spark query: the points where they strike, and what they do.

Every effect of the sink passes `strike`, in whatever process it happens. A driver's plan of faults is a file,
and passes of a point are counted over all its processes, with lock files.

    claim read describe append end mark_done open_ids ...   the driver's effects, each `.before` and `.after`
    append.between        the decision is produced, and not committed
    end.among             one participant is committed, the others are not
    init send prepare     a task's; `rows` is its source's side

Workers of Spark import this module by its name.
"""

import fcntl
import json
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Final, cast

import psutil
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from tallystick.client.aio.producer import CLOSE_TIMEOUT_S
from tallystick.client.blocking.producer import Producer
from tallystick.client.errors import ClientError, TimedOut
from tallystick.client.net.cluster import Cluster
from tallystick.client.transactions.modes import TxnDecision
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.spark.data_source import KafkaDataSource
from tallystick.spark.decisions.participants import ClusterParticipants
from tallystick.spark.decisions.topic import DecisionTopic
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import Participant
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.protocol.transactional_ids import WorkerTransactionalId
from tallystick.spark.sink.driver import writers
from tallystick.spark.sink.driver.context import SinkContext, get_sink_context
from tallystick.testing import eventually

FOLDER: Final = "SPARK_TORTURE"
"""The environment variable that tells all processes of a driver where its plan is."""
_LIMIT_MS: Final = 20_000
# Limits, so that no process waits for ever; a stalled driver may find that its time is long over.
_STALL_S: Final = 600.0
_STOP_S: Final = 5.0
_ZOMBIE_S: Final = 90.0
_EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_HOST: Final = "org.apache.spark.deploy.worker.Worker"


@dataclass(frozen=True)
class Fault:
    """The effect of passing a point the n-th time.

    raise, kill-worker   in this process
    kill-driver          SIGKILL of the Java of the driver and of its Python
    kill-broker          SIGKILL of the broker; it is back when the effect goes on
    stop                 query.stop(), and some time for it to get through
    stall                until the test says `go`: another driver lives meanwhile
    kill-executor        SIGKILL of the Java above a task; its Python has to notice by itself
    kill-host            SIGKILL of every process on a task's host: Spark's worker, executor and Python
    zombie               until `release` is passed, at a point where the attempt has a producer; from the
                         n-th time on, of a task's first attempt
    release              the zombies go on, and this waits until they have ended
    kill-database        SIGKILL of the database; it is back when the effect goes on
    lose-database        the same, and it is back when the driver has ended
    rotate               the broker's certificate is replaced; connections made from now on get the new one
    """

    point: str
    nth: int
    kind: str


class Folder:
    """The messages between the processes of one driver and the test above them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def plan(self, faults: Collection[Fault]) -> None:
        self.path.mkdir(parents=True)
        (self.path / "plan").write_text(json.dumps([[f.point, f.nth, f.kind] for f in faults]))

    @property
    def faults(self) -> list[Fault]:
        return [Fault(*each) for each in json.loads((self.path / "plan").read_text())]

    def says(self, word: str) -> bool:
        return (self.path / word).exists()

    def say(self, word: str, text: str = "") -> None:
        fresh = self.path / f"{word}.{os.getpid()}"
        fresh.write_text(text)
        fresh.replace(self.path / word)

    def struck(self) -> list[str]:
        """Return `kind at point` of every fault that happened, in order."""
        with suppress(FileNotFoundError):
            return (self.path / "struck").read_text().splitlines()
        return []

    def lasting(self) -> list[int]:
        """Return the processes of zombies that have not ended."""
        named = [int(each.name.removeprefix("zombie-")) for each in self.path.glob("zombie-*[0-9]")]
        return [pid for pid in named if psutil.pid_exists(pid)]

    def attempt_ended(self) -> None:
        """Note the end of an attempt in this process, if it was a zombie."""
        zombie = self.path / f"zombie-{os.getpid()}"
        if zombie.exists():
            self._note("zombie ended")
            zombie.unlink()

    def _is_due(self, fault: Fault, count: int) -> bool:
        """Check whether a fault is due; a zombie is a first attempt, since Spark's copy of it wins."""
        if fault.kind != "zombie":
            return fault.nth == count
        context = TaskContext.get()
        is_first = context is not None and context.attemptNumber() == 0
        return is_first and fault.nth <= count and f"{fault.kind} at {fault.point}" not in self.struck()

    def _note(self, what: str) -> None:
        with (self.path / "struck").open("a") as struck:
            struck.write(f"{what}\n")

    def pass_by(self, point: str) -> Fault | None:
        """Claim the fault that is due at this point now; no other process gets it."""
        here = [fault for fault in self.faults if fault.point == point]
        if not here:
            return None
        with (self.path / f"count-{point}").open("a+") as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            counter.seek(0)
            count = len(counter.read()) + 1
            counter.write(".")
            due = next((fault for fault in here if self._is_due(fault, count)), None)
            if due is not None:
                self._note(f"{due.kind} at {point}")
            return due


def strike(point: str) -> str | None:
    """Pass a point, and return the kind of fault that happened there.

    Raises:
        TimedOut: if that is the plan.
        InDoubt: if the plan loses the answer to a decision.
    """
    folder = Folder(Path(os.environ[FOLDER]))
    fault = folder.pass_by(point)
    if fault is None:
        return None
    match fault.kind:
        case "raise" if point == "append.after":
            raise InDoubt("the answer to the decision is lost")
        case "raise":
            raise TimedOut("torture", 1, point)
        case "kill-worker":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill-driver":
            for pid in (folder.path / "pids").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill-executor":
            for java in _above(_EXECUTOR):
                java.kill()
        case "kill-host":
            for java in _above(_HOST):
                for each in (java, *java.children(recursive=True)):
                    each.kill()
        case _:
            _wait(folder, fault.kind)
    return fault.kind


def _wait(folder: Folder, kind: str) -> None:
    """Wait until the other process has done its part."""
    match kind:
        case "kill-broker" | "kill-database" | "lose-database" | "rotate":
            folder.say(kind)
            eventually(lambda: not folder.says(kind), _STALL_S)
        case "stop":
            folder.say("stop")
            with suppress(TimeoutError):
                eventually(lambda: folder.says("stopped"), _STOP_S)
        case "stall":
            folder.say("stalled")
            eventually(lambda: folder.says("go"), _STALL_S)
        case "zombie":
            folder.say(f"zombie-{os.getpid()}")
            with suppress(TimeoutError):
                eventually(lambda: folder.says("released"), _ZOMBIE_S)
        case "release":
            folder.say("released")
            eventually(lambda: not folder.lasting(), _STALL_S)


def _above(name: str) -> list[psutil.Process]:
    """Return the ancestors of this process that run a class of this name."""
    return [each for each in psutil.Process().parents() if any(name in word for word in each.cmdline())]


class Effects:
    """An object whose every awaited method passes a point before and after."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)
        if not iscoroutinefunction(method):
            return cast(Callable[..., Any], method)  # it asks nobody

        async def effect(*args: object, **kwargs: object) -> object:
            strike(f"{name}.before")
            result = await method(*args, **kwargs)
            strike(f"{name}.after")
            return result

        return effect


class EndedOneByOne(ClusterParticipants):
    """Passes a point between two participants: one is committed, and the others are not."""

    async def end(
        self, participants: Collection[Participant], transaction_version: int, wish: TxnDecision
    ) -> Mapping[str, ClientError]:
        first, others = list(participants)[:1], list(participants)[1:]
        failures = dict(await super().end(first, transaction_version, wish))
        strike("end.among")
        return {**failures, **await super().end(others, transaction_version, wish)}


class DecidedInTwoSteps(DecisionTopic):
    """Passes a point at which the decision is produced and not committed."""

    async def _produce(
        self, key: bytes, value: bytes | None, held: ProducerIdAndEpoch | None, max_version: int
    ) -> None:
        await super()._produce(key, value, held, max_version)
        if held is not None:
            strike("append.between")


class TorturedProducer(Producer):
    """The producer of one attempt."""

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        super().init_transactions(keep_prepared_txn)
        strike("init.after")

    def send_arrow(self, batch: pa.RecordBatch | pa.Table, topic: str | None = None) -> list[Any]:
        sent = super().send_arrow(batch, topic)
        strike("send.after")
        return sent

    def prepare_transaction(self) -> PreparedTxnState:
        strike("prepare.before")
        state = super().prepare_transaction()
        strike("prepare.after")
        return state

    def abort_transaction(self) -> None:
        super().abort_transaction()
        Folder(Path(os.environ[FOLDER])).attempt_ended()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        super().close(timeout_s)
        Folder(Path(os.environ[FOLDER])).attempt_ended()


class TorturedStation(SinkContext):
    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        participants: Any = Effects(EndedOneByOne(cluster, self.options, _LIMIT_MS))
        decisions: Any = Effects(DecidedInTwoSteps(cluster, self.options, _LIMIT_MS))
        return participants, decisions

    def create_producer(self, name: WorkerTransactionalId) -> Producer:
        return TorturedProducer(self.options.list_producer_settings(str(name)))


def connect(options: SinkOptions) -> SinkContext:
    return get_sink_context(options, TorturedStation)


class TorturedSource(KafkaDataSource):
    """The format "tortured": our source and our sink, with faults in every effect of the sink."""

    @classmethod
    def name(cls) -> str:
        return "tortured"

    def streamWriter(self, schema: StructType, overwrite: bool) -> writers.StreamWriter:  # noqa: N802
        return writers.create_stream_writer(self.options, schema, connect, begins=self.is_new)


def disturbed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass the source's rows on to the query, with faults."""
    for batch in batches:
        strike("rows")
        yield batch
