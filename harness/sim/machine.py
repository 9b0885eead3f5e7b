"""The broker's computer: a disk that loses what was not synced, and a process that is restarted.

The process is the real broker, from the dispatcher down. The disk, time and scheduling under it are
simulated. The group commit syncs on the loop a little after it was asked, where the real one has a thread; a
round of compaction runs at once, where the real one has a process.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from random import Random
from typing import Final
from uuid import UUID

from harness.memory_fs import DirectoryTree, MemoryFileSystem, SurvivingChanges
from harness.sim.loop import VirtualLoop, VirtualTime, new_loop
from tallystick.broker.broker import Broker
from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.handlers import HANDLERS
from tallystick.broker.handlers.dispatch import RequestDispatcher
from tallystick.broker.metadata.store import IN_MEMORY, MetadataStore
from tallystick.broker.partitions.data_directory import StorageEnvironment
from tallystick.broker.partitions.log_cleaner import CleanerProcess
from tallystick.kernel.clock import Clock
from tallystick.kernel.ids import Offset
from tallystick.kernel.value import Value
from tallystick.storage.compaction.cleaner import run_request
from tallystick.storage.disk.fs import StorageFailure
from tallystick.storage.log.group_commit import RETRY_S, GroupCommit
from tallystick.storage.log.log import Log

DATA: Final = "data"


def run_in_order(calls: Sequence[Callable[[], None]]) -> None:
    """Make the calls one after another, in an order that the seed repeats, instead of in threads."""
    for call in calls:
        call()


class LoopGroupCommit(GroupCommit):
    """The group commit with its rounds on the loop instead of in a thread."""

    def __init__(
        self,
        notify: Callable[[Log, Offset], None],
        notify_failure: Callable[[Log, StorageFailure], None],
        loop: VirtualLoop,
        delay_s: Callable[[], float],
    ) -> None:
        super().__init__(notify, notify_failure)
        self._loop = loop
        self._delay_s = delay_s
        self._waiting: dict[Log, None] = {}

    def start(self) -> None:
        return None

    def request(self, log: Log) -> None:
        if not self._waiting:
            self._loop.call_later(self._delay_s(), self.stop)
        self._waiting[log] = None

    def stop(self) -> None:
        logs, self._waiting = self._waiting, {}
        for log in logs:
            self._sync(log)
        if self._retry_queue:
            if not self._waiting:
                self._loop.call_later(RETRY_S, self.stop)
            self._waiting.update(dict.fromkeys(self._retry_queue))
            self._retry_queue.clear()


class LoopCleaner:
    """The cleaner with its rounds run at once, where the real one has a process of its own."""

    def __init__(self, fs: MemoryFileSystem) -> None:
        self.returncode: int | None = None
        self._fs = fs
        self._request = b""
        self._response_lines: list[bytes] = []

    @property
    def stdin(self) -> "LoopCleaner":
        return self

    @property
    def stdout(self) -> "LoopCleaner":
        return self

    def write(self, data: bytes) -> None:
        self._request += data

    async def drain(self) -> None:
        await asyncio.sleep(0.001)

    def close(self) -> None:
        output = StringIO()
        self.returncode = 0 if run_request(self._fs, self._request.decode(), output) else 1
        self._response_lines = output.getvalue().encode().splitlines(keepends=True)

    async def readline(self) -> bytes:
        await asyncio.sleep(0.001)
        return self._response_lines.pop(0) if self._response_lines else b""

    def kill(self) -> None:
        self.returncode = -9

    async def wait(self) -> int:
        return self.returncode or 0


class InMemoryMetadataStore(MetadataStore):
    """The metadata in memory; like data on a disk, what a method has written survives the process."""

    def __init__(self, cluster_id: str, content: bytes | None = None) -> None:
        super().__init__(IN_MEMORY, cluster_id)
        if content is not None:
            self._db.deserialize(content)
            self._db.execute("PRAGMA foreign_keys = ON")

    def serialize(self) -> bytes:
        return self._db.serialize()

    def reopen(self, make_room: Callable[[], None]) -> "InMemoryMetadataStore":
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._make_room = make_room
        return self

    def close(self) -> None:
        return None


class DiskImage(Value, kw_only=True):
    """The initial content of a disk: made once in a process, copied for every seed."""

    directories: tuple[str, ...]
    files: Mapping[str, bytes]
    metadata: bytes
    cluster_id: str

    def create_tree(self) -> DirectoryTree:
        return DirectoryTree.synced(self.directories, self.files)


class BrokerMachine:
    """One computer. `start` boots the broker; `broker` is set while it serves."""

    def __init__(
        self,
        settings: Mapping[str, str],
        time: VirtualTime,
        random: Random,
        image: DiskImage | None = None,
        sync_delay_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.time = time
        self.config = BrokerConfig.parse(settings)
        self.fs = MemoryFileSystem(None if image is None else image.create_tree())
        self.broker: Broker | None = None
        self.dispatcher: RequestDispatcher | None = None
        self.boot_count = 0
        self.is_running = False
        self.has_disk_failure = False  # whether a call of the disk has failed in this life
        self._life = 0
        self.loop = new_loop(time)
        self._random = random
        # Starts like the other source but draws for itself: other draws of the seed do not depend on ids.
        self._ids = Random()
        self._ids.setstate(random.getstate())
        self._sync_delay_s = sync_delay_s
        self._store = None if image is None else InMemoryMetadataStore(image.cluster_id, image.metadata)

    def note_disk_failure(self) -> None:
        """Note that a call of the disk has failed."""
        self.has_disk_failure = True

    def start(self) -> None:
        """Begin to boot, on a new loop."""
        self.boot_count += 1
        self.is_running = True
        self.has_disk_failure = False
        life = self._life = self.fs.boot_count
        self.loop = new_loop(
            self.time,
            alive=lambda: self.fs.boot_count == life,
            thread_delay_s=lambda: self._random.choice((0.0, 0.0, 0.002)),
        )
        self.booting = self.loop.create_task(self._boot(), name="boot")

    async def _boot(self) -> None:
        clock: Clock = self.time
        disk = StorageEnvironment(
            fs=self.fs,
            run_concurrently=run_in_order,
            make_syncer=self._syncer,
            open_metadata=self._metadata,
            start_cleaner=self._cleaner,
        )
        broker = Broker(self.config, Path(DATA), clock, disk, new_uuid=self._new_uuid)
        broker.open()
        await broker.start()
        self.broker = broker
        self.dispatcher = RequestDispatcher(broker, HANDLERS)

    def _new_uuid(self) -> UUID:
        return UUID(int=self._ids.getrandbits(128), version=4)

    async def _cleaner(self) -> CleanerProcess:
        return LoopCleaner(self.fs)

    def _syncer(
        self,
        notify: Callable[[Log, Offset], None],
        notify_failure: Callable[[Log, StorageFailure], None],
    ) -> LoopGroupCommit:
        return LoopGroupCommit(notify, notify_failure, self.loop, self._sync_delay_s)

    def _metadata(
        self, path: Path, cluster_id: str, make_room: Callable[[], None], *, may_create: bool
    ) -> MetadataStore:
        if self._store is None:
            self.fs.open_append(str(path)).sync()  # the file only has to exist
            self.fs.sync_dir(DATA)
            self._store = InMemoryMetadataStore(cluster_id)
        return self._store.reopen(make_room)

    @property
    def is_alive(self) -> bool:
        """Whether the process exists: false after the effect of the disk that was its last."""
        return self.broker is not None and self.fs.boot_count == self._life

    @property
    def is_broken(self) -> bool:
        """Whether the disk fails, known to the broker or not: a request may then end in any way."""
        is_failure_known = self.broker is not None and self.broker.failure is not None
        return is_failure_known or self.fs.sync_failure is not None or self.has_disk_failure

    @property
    def has_died(self) -> bool:
        """Whether power has failed and the process was not ended yet."""
        return self.is_running and self.fs.boot_count != self._life

    def end(self, keep: SurvivingChanges, seed: int) -> None:
        """End the process at once; `keep` and `seed` decide what the disk keeps of unsynced data."""
        self.is_running = False
        self.fs.has_lost_power = True
        self.loop.kill()
        self.broker = self.dispatcher = None
        self.fs.crash(keep, seed)
        self.fs.write_failure = self.fs.sync_failure = None

    def capture_image(self) -> DiskImage:
        """Return the disk of a stopped machine."""
        if self._store is None:
            raise sqlite3.ProgrammingError("the broker was never started")
        files = self.fs.files()
        return DiskImage(
            directories=tuple(path for path in self.fs.directories() if path),
            files=files,
            metadata=self._store.serialize(),
            cluster_id=self._store.load_cluster_id(),
        )
