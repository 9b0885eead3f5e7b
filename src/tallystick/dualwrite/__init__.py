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
        BadStore,
        CommitUnknown,
        CorruptRow,
        DatabaseBehind,
        DataLoss,
        DualWriteError,
        ForeignCluster,
        HeuristicMixed,
        LeaseLost,
        LogBehind,
        ManagedByWriter,
        NoFreeId,
        NotCommitted,
        NotRecovered,
        NotVisible,
        Outcome,
        RecoveryHalted,
        TransactionTooOld,
        UnsafeDurability,
        WriteInDoubt,
        WriterFenced,
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
    "BadStore",
    "CommitUnknown",
    "CorruptRow",
    "DataLoss",
    "DatabaseBehind",
    "DeltaStore",
    "DjangoStore",
    "DualWriteError",
    "DualWriter",
    "Finding",
    "ForeignCluster",
    "HeuristicMixed",
    "IdempotencyKey",
    "Lease",
    "LeaseLost",
    "LogBehind",
    "ManagedByWriter",
    "NoFreeId",
    "NotCommitted",
    "NotRecovered",
    "NotVisible",
    "Outcome",
    "RecoveryHalted",
    "Report",
    "Retry",
    "RocksStore",
    "SqlStore",
    "Transaction",
    "TransactionTooOld",
    "UnsafeDurability",
    "Verdict",
    "WriteInDoubt",
    "WriterFenced",
    "WriterPool",
    "ZooKeeperStore",
    "aio",
    "consume_into",
]

if not TYPE_CHECKING:
    _WHERE = {
        "errors": (
            "BadResult CorruptRow BadStore CommitUnknown DataLoss DatabaseBehind DualWriteError WriterFenced "
            "ForeignCluster RecoveryHalted LeaseLost LogBehind NoFreeId NotCommitted NotRecovered NotVisible "
            "ManagedByWriter Outcome TransactionTooOld HeuristicMixed UnsafeDurability WriteInDoubt"
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
