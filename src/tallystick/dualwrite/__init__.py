"""Dual write: a database and Kafka commit together, or not at all.

    from tallystick.dualwrite import DualWriter, SqlStore

Names are imported on first use, because each store needs its own library. `tallystick.dualwrite.aio` has the
asyncio versions. docs/dualwrite.md describes the guarantees, and docs/dualwrite/ the rest.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.dualwrite import aio
    from tallystick.dualwrite.blocking.consume import consume_into
    from tallystick.dualwrite.blocking.pool import WriterPool
    from tallystick.dualwrite.blocking.writer import DualWriter, Transaction
    from tallystick.dualwrite.errors import (
        BadResult,
        BadRow,
        BadStore,
        CommitUnknown,
        DatabaseBehind,
        DataLoss,
        DualWriteError,
        Fenced,
        ForeignCluster,
        Halted,
        LeaseLost,
        LogBehind,
        NoFreeId,
        NotCommitted,
        NotRecovered,
        NotVisible,
        NotYours,
        Outcome,
        TooLate,
        Torn,
        UnsafeStore,
        WriteInDoubt,
    )
    from tallystick.dualwrite.rules.idempotency import IdempotencyKey
    from tallystick.dualwrite.rules.leases import Lease
    from tallystick.dualwrite.rules.recovery import Finding, Report, Verdict
    from tallystick.dualwrite.rules.retries import Retry
    from tallystick.dualwrite.stores.django import DjangoStore
    from tallystick.dualwrite.stores.rocksdb import RocksStore
    from tallystick.dualwrite.stores.sql import SqlStore
    from tallystick.dualwrite.stores.sql_async import AsyncSqlStore
    from tallystick.dualwrite.stores.zookeeper import ZooKeeperStore
    from tallystick.lake.dual_writes.store import DeltaStore
    from tallystick.lake.dual_writes.store_async import AsyncDeltaStore

__all__ = [
    "AsyncDeltaStore",
    "AsyncSqlStore",
    "BadResult",
    "BadRow",
    "BadStore",
    "CommitUnknown",
    "DataLoss",
    "DatabaseBehind",
    "DeltaStore",
    "DjangoStore",
    "DualWriteError",
    "DualWriter",
    "Fenced",
    "Finding",
    "ForeignCluster",
    "Halted",
    "IdempotencyKey",
    "Lease",
    "LeaseLost",
    "LogBehind",
    "NoFreeId",
    "NotCommitted",
    "NotRecovered",
    "NotVisible",
    "NotYours",
    "Outcome",
    "Report",
    "Retry",
    "RocksStore",
    "SqlStore",
    "TooLate",
    "Torn",
    "Transaction",
    "UnsafeStore",
    "Verdict",
    "WriteInDoubt",
    "WriterPool",
    "ZooKeeperStore",
    "aio",
    "consume_into",
]

if not TYPE_CHECKING:
    _WHERE = {
        "errors": (
            "BadResult BadRow BadStore CommitUnknown DataLoss DatabaseBehind DualWriteError Fenced "
            "ForeignCluster Halted LeaseLost LogBehind NoFreeId NotCommitted NotRecovered NotVisible "
            "NotYours Outcome TooLate Torn UnsafeStore WriteInDoubt"
        ),
        "blocking.consume": "consume_into",
        "rules.idempotency": "IdempotencyKey",
        "rules.leases": "Lease",
        "blocking.pool": "WriterPool",
        "rules.recovery": "Finding Report Verdict",
        "rules.retries": "Retry",
        "stores.django": "DjangoStore",
        "stores.rocksdb": "RocksStore",
        "stores.sql": "SqlStore",
        "stores.sql_async": "AsyncSqlStore",
        "stores.zookeeper": "ZooKeeperStore",
        "blocking.writer": "DualWriter Transaction",
    }
    __getattr__ = _lazy.attributes(
        __name__,
        {
            "aio": f"{__name__}.aio",
            "DeltaStore": "tallystick.lake.dual_writes.store:DeltaStore",
            "AsyncDeltaStore": "tallystick.lake.dual_writes.store_async:AsyncDeltaStore",
        }
        | {name: f"{__name__}.{module}:{name}" for module, names in _WHERE.items() for name in names.split()},
    )
