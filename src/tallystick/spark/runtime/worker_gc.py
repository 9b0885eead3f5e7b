"""A Python worker of Spark's is used again, and collects its garbage after each use.

PySpark's daemon does that in full, `gc.collect()`, while the next task may be waiting for the worker: it
goes through every object of every module that is loaded, some 60 ms a task and a call with pandas, Arrow and
this library, where the task itself takes 10. Modules are there to stay: what they made is frozen, and the
collector finds nothing to look at.

Source: PySpark 4.3 daemon.py, `manager`; docs/notes/spark-start.md.
"""

import gc
import os
import sys
from typing import Final

# Of the processes that Spark starts and uses again, and of no other: a user's own is not touched.
_REUSED: Final = "SPARK_REUSE_WORKER"
_settled_modules = 0


def settle() -> None:
    """Hide what is loaded by now from the collector, in a worker that is used again. Cheap otherwise.

    What is garbage already is collected first. Objects go as before when nothing refers to them; only cycles
    that become garbage later stay, and those of modules do not.
    """
    global _settled_modules
    if len(sys.modules) == _settled_modules or not os.environ.get(_REUSED):
        return
    gc.collect()
    gc.freeze()
    _settled_modules = len(sys.modules)
