"""Deleted topics until their names are free and their files removed.

A deletion is durable before it comes here. The name is free once the topic's directories have been renamed,
not before: a deletion that fails in between is retried automatically, after a crash at the next start
[MET-3]. Files are removed last, and nothing depends on when.
"""

import asyncio
import logging
import uuid
from functools import partial
from typing import Final, Protocol

from tallystick.broker.metadata.store import STORAGE_FAILURES, MetadataStore, Topic
from tallystick.broker.metadata.worker import BlockingWorker
from tallystick.kernel.ids import TopicPartition
from tallystick.storage.disk.fs import is_disk_failure

_log = logging.getLogger("tallystick.broker.topics")

# Delay before a failed deletion is retried: doubled after each further failure.
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0


class DeletedTopicStorage(Protocol):
    """Gives up the directories of deleted topics, one at a time; methods that are not `async` block."""

    def transfer_directories(self, deleted: Topic, to: Topic) -> tuple[TopicPartition, ...]: ...

    async def rename_for_deletion(self, topic: Topic) -> None: ...

    def rename_for_deletion_now(self, topic: Topic) -> None: ...

    @property
    def has_pending_removals(self) -> bool: ...

    async def remove_deleted_logs(self) -> None: ...

    def report_failure(self, cause: Exception) -> None: ...


class TopicDeletions:
    """The unfinished deletions, and the task that retries them. Lives on the loop; owned by the broker."""

    def __init__(
        self, store: MetadataStore, files: DeletedTopicStorage, worker: BlockingWorker, lock: asyncio.Lock
    ) -> None:
        """Create the list without entries.

        Args:
            lock: serializes changes of topics; `finish` is called with it held.
        """
        self._store = store
        self._storage = files
        self._worker = worker
        self._lock = lock
        self._unfinished_deletions: dict[uuid.UUID, Topic] = {}
        self._retry_task: asyncio.Task[None] | None = None
        self._is_started = False

    def __len__(self) -> int:
        """Return the number of deleted topics whose names are not free yet."""
        return len(self._unfinished_deletions)

    def holds_name(self, name: str) -> bool:
        """Return whether a topic of that name is deleted and the name is not free yet."""
        return any(topic.name == name for topic in self._unfinished_deletions.values())

    def resume(self, deleted: Topic, successor: Topic | None) -> None:
        """Continue a deletion that the last process did not finish. Blocking: the broker is starting.

        Args:
            successor: the present topic of that name, if there is one.
        """
        self._unfinished_deletions[deleted.topic_id] = deleted
        try:
            if successor is not None:
                # Earlier versions freed the name before the deletion was finished, and the successor took
                # over the remaining directories: they hold records acknowledged to its producers.
                for name in self._storage.transfer_directories(deleted, successor):
                    _log.warning(
                        "%s also has records of a deleted topic of the same name, whose deletion had failed",
                        name,
                    )
            self._storage.rename_for_deletion_now(deleted)
            self._store.forget_deleted([deleted.topic_id])
        except STORAGE_FAILURES as exc:
            self._report_unfinished(deleted, exc)
        else:
            del self._unfinished_deletions[deleted.topic_id]

    def start(self) -> None:
        """Retry the deletions that `resume` could not finish, and those that will fail."""
        self._is_started = True
        self._schedule_retry()

    async def stop(self) -> None:
        """End the background task; the next start continues its work."""
        self._is_started = False
        if self._retry_task is not None:
            self._retry_task.cancel()
            await asyncio.gather(self._retry_task, return_exceptions=True)

    def add(self, topic: Topic) -> None:
        """Take over a topic whose deletion has become durable."""
        self._unfinished_deletions[topic.topic_id] = topic

    async def finish(self, name: str | None = None) -> None:
        """Free the names of deleted topics, or of one. Failures are logged, and retried later."""
        for topic in [each for each in self._unfinished_deletions.values() if name in (None, each.name)]:
            try:
                await self._storage.rename_for_deletion(topic)
                await self._worker.run(partial(self._store.forget_deleted, [topic.topic_id]))
            except STORAGE_FAILURES as exc:
                self._report_unfinished(topic, exc)
            else:
                del self._unfinished_deletions[topic.topic_id]
                _log.info("deleted topic %s", topic.name)

    async def remove_files(self) -> None:
        """Remove the files of topics whose names are free. A failure is logged, and retried later."""
        try:
            await self._storage.remove_deleted_logs()
        except OSError as exc:
            _log.warning("files of deleted topics could not be removed, which is tried again: %s", exc)
            self._schedule_retry()

    def _report_unfinished(self, topic: Topic, exc: Exception) -> None:
        _log.error(
            "topic %s was deleted, but its directories could not be renamed, so its name and its space are"
            " still in use; this is tried again: %s",
            topic.name,
            exc,
        )
        self._schedule_retry()
        if is_disk_failure(exc):
            self._storage.report_failure(exc)

    @property
    def _has_work(self) -> bool:
        return bool(self._unfinished_deletions) or self._storage.has_pending_removals

    def _schedule_retry(self) -> None:
        """Start a task that finishes deletions, if there are any and none is running."""
        if self._is_started and self._retry_task is None and self._has_work:
            self._retry_task = asyncio.get_running_loop().create_task(self._retry(), name="finish deletions")

    async def _retry(self) -> None:
        wait_s = RETRY_S
        try:
            while self._has_work:
                await asyncio.sleep(wait_s)
                async with self._lock:
                    await self.finish()
                await self.remove_files()
                wait_s = min(2 * wait_s, RETRY_MAX_S)
        finally:
            self._retry_task = None
