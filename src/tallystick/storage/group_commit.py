"""The thread that puts appended bytes on the disk, for many appends and many logs at a time.

While one round of syncs runs, requests gather; the next round serves them all. A lone producer pays one
thread hop, sixteen share one sync. fdatasync releases the GIL, so the loop goes on meanwhile.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from tallystick.kernel.ids import Offset
from tallystick.storage.fs import StorageFailure
from tallystick.storage.log import Log


class GroupCommit:
    """One thread. `request` from any thread; the callbacks are called in this one.

    Args:
        notify: a log is safe up to an offset.
        notify_failure: a sync failed. It is not tried again, here or by anyone [LOG-4].
    """

    def __init__(
        self, notify: Callable[[Log, Offset], None], notify_failure: Callable[[Log, StorageFailure], None]
    ) -> None:
        self._notify = notify
        self._notify_failure = notify_failure
        self._requests: SimpleQueue[Log | None] = SimpleQueue()
        self._failed: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self.rounds = 0

    def start(self) -> None:
        self._thread.start()

    def request(self, log: Log) -> None:
        """Have what is in `log` now on the disk soon. Cost: under a microsecond."""
        self._requests.put(log)

    def stop(self) -> None:
        """Serve what was requested, then end. Blocks."""
        if self._thread.is_alive():
            self._requests.put(None)
            self._thread.join()

    def _run(self) -> None:
        while True:
            logs: dict[Log, None] = {}
            stopping = False
            request = self._requests.get()
            while True:
                if request is None:
                    stopping = True
                else:
                    logs[request] = None
                if self._requests.empty():
                    break
                request = self._requests.get()
            self.rounds += 1
            for log in logs:
                self._sync(log)
            if stopping:
                return

    def _sync(self, log: Log) -> None:
        if id(log) in self._failed:
            return
        try:
            end = log.sync()
        except StorageFailure as exc:
            self._failed.add(id(log))
            self._notify_failure(log, exc)
        except Exception as exc:
            # A mistake of ours. Without this thread every producer would wait for ever and be told nothing.
            self._failed.add(id(log))
            self._notify_failure(log, log.fail(f"a sync went wrong: {exc!r}"))
        else:
            self._notify(log, end)
