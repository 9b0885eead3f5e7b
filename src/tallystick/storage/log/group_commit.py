"""Group commit: threads that sync many appends and many logs together.

While one round of syncs runs, requests gather; the next round serves them all. A lone producer pays one
thread switch, sixteen share one sync. fdatasync releases the GIL, so the loop goes on meanwhile.

The logs of a round are synced concurrently: the slow part is the disk's flush, and concurrent syncs share
it. Fifty logs, as 64 transactional producers touch them, take a ninth of the time.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Final

from tallystick.kernel.ids import Offset
from tallystick.storage.disk.fs import OutOfDescriptors, StorageFailure
from tallystick.storage.log.log import Log

# More threads than this gain little, and each competes for the GIL.
HELPER_THREADS: Final = 7
# Two or three syncs in sequence take less than waking helper threads and hearing from them.
HELPED_LOGS_MIN: Final = 4
# Delay before a retry of a sync for which no file descriptor was available.
RETRY_S: Final = 0.1


class GroupCommit:
    """One thread, plus helpers when a round has several logs. `request` from any thread.

    Args:
        notify: a log is synced up to an offset. Called in these threads, for several logs concurrently.
        notify_failure: a sync failed. It is never retried [LOG-4]. Called likewise.
    """

    def __init__(
        self, notify: Callable[[Log, Offset], None], notify_failure: Callable[[Log, StorageFailure], None]
    ) -> None:
        self._notify = notify
        self._notify_failure = notify_failure
        self._requests: SimpleQueue[Log | None] = SimpleQueue()
        self._failed_logs: set[int] = set()
        self._retry_queue: list[Log] = []
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._helpers = ThreadPoolExecutor(HELPER_THREADS, thread_name_prefix="group-commit")
        self.round_count = 0

    def start(self) -> None:
        self._thread.start()

    def request(self, log: Log) -> None:
        """Request a sync of what is in `log` now. Cost: under a microsecond."""
        self._requests.put(log)

    def stop(self) -> None:
        """Serve the pending requests, then end the threads. Blocks."""
        if self._thread.is_alive():
            self._requests.put(None)
            self._thread.join()

    def _run(self) -> None:
        should_stop = False
        while not should_stop:
            logs, should_stop = self._collect_round()
            self.round_count += 1
            self._sync_all(logs)
        self._helpers.shutdown()

    def _collect_round(self) -> tuple[list[Log], bool]:
        """Return the logs of the next round and whether it is the last. Blocks until there is a request."""
        logs, should_stop = dict.fromkeys(self._retry_queue), False
        self._retry_queue.clear()
        try:
            request = self._requests.get(timeout=RETRY_S if logs else None)
            while True:
                if request is None:
                    should_stop = True
                else:
                    logs[request] = None
                if self._requests.empty():
                    break
                request = self._requests.get()
        except Empty:
            pass
        return list(logs), should_stop

    def _sync_all(self, logs: list[Log]) -> None:
        """Sync all logs of one round and wait for them, so that two threads never sync the same log."""
        own = 1 if len(logs) >= HELPED_LOGS_MIN else len(logs)
        futures = [self._helpers.submit(self._sync, log) for log in logs[own:]]
        for log in logs[:own]:
            self._sync(log)
        for future in futures:
            future.result()

    def _sync(self, log: Log) -> None:
        if id(log) in self._failed_logs:
            return
        try:
            end = log.sync()
        except OutOfDescriptors:
            # Nothing was synced and nothing is lost; waiting producers go on waiting.
            self._retry_queue.append(log)
        except StorageFailure as exc:
            self._failed_logs.add(id(log))
            self._notify_failure(log, exc)
        except Exception as exc:
            # A bug of ours. If this thread died, every producer would wait for ever without an answer.
            self._failed_logs.add(id(log))
            self._notify_failure(log, log.take_offline(f"a sync failed unexpectedly: {exc!r}"))
        else:
            self._notify(log, end)
