"""The effects of a store in a Delta table, announced one by one, so that a life can be killed between them.

A step of the recipe has several: the data file, its name on the disk, the log entry, its name on the disk.
They are announced for the whole process, which is one life's.
"""

from collections.abc import Callable
from typing import Any, Final

from tallystick.lake import delta
from tallystick.lake.storage import LocalStorage

FILE_CREATED: Final = "create data file"
FILE_FINISHED: Final = "finish data file"
ENTRY_WRITTEN: Final = "write log entry"
ENTRY_SYNCED: Final = "sync log entry"
# The same for a version that has data files: the decision of a payment.
DECISION_WRITTEN: Final = "write log entry with rows"
DECISION_SYNCED: Final = "sync log entry with rows"
EFFECTS: Final = (
    FILE_CREATED,
    FILE_FINISHED,
    ENTRY_WRITTEN,
    ENTRY_SYNCED,
    DECISION_WRITTEN,
    DECISION_SYNCED,
)

Announce = Callable[[str, bool], None]


def announce_effects(announce: Announce) -> None:
    """Call `announce` before and after every effect of this process on a Delta table."""
    create, finish, sync = LocalStorage.create, LocalStorage.finish, LocalStorage.sync
    append = delta._append
    has_rows = False

    def run(name: str, call: Callable[..., Any], *args: Any) -> Any:
        announce(name, False)
        result = call(*args)
        announce(name, True)
        return result

    def append_announced(table: Any, files: Any, properties: Any) -> None:
        nonlocal has_rows
        has_rows = bool(files)
        run(DECISION_WRITTEN if has_rows else ENTRY_WRITTEN, append, table, files, properties)

    def sync_announced(self: LocalStorage, path: str) -> None:
        run(DECISION_SYNCED if has_rows else ENTRY_SYNCED, sync, self, path)

    def create_announced(self: LocalStorage, path: str) -> Any:
        return run(FILE_CREATED, create, self, path)

    def finish_announced(self: LocalStorage, path: str, sink: Any) -> Any:
        return run(FILE_FINISHED, finish, self, path, sink)

    patches = {"create": create_announced, "finish": finish_announced, "sync": sync_announced}
    for name, patch in patches.items():
        setattr(LocalStorage, name, patch)
    delta._append = append_announced
