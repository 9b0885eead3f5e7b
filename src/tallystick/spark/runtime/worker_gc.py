"""Cheaper garbage collection in Spark's reused Python workers.

PySpark's daemon runs a full `gc.collect()` after each task or call, while the next task may be waiting for
the worker. It traverses every object of every loaded module: some 60 ms with pandas, Arrow and this library,
for a task that takes 10. Modules are never unloaded, so their objects are frozen, and the collector skips
them.

Source: PySpark 4.3 daemon.py, `manager`; docs/notes/spark-start.md.
"""

import gc
import os
import sys
from typing import Final

# Spark sets it only in workers that it starts and reuses: a user's own process is not affected.
_REUSE_VARIABLE: Final = "SPARK_REUSE_WORKER"
_frozen_module_count = 0


def is_reused_worker() -> bool:
    """Return whether this is a Python worker that Spark gives one task after another."""
    return bool(os.environ.get(_REUSE_VARIABLE))


def freeze_loaded_modules() -> None:
    """Freeze the objects that exist now, in a reused worker. Cheap if no module was loaded since.

    Garbage is collected first. Frozen objects are still freed when nothing refers to them. Only frozen cycles
    that become garbage later are never freed, and those of modules do not become garbage.
    """
    global _frozen_module_count
    if len(sys.modules) == _frozen_module_count or not is_reused_worker():
        return
    gc.collect()
    gc.freeze()
    _frozen_module_count = len(sys.modules)
