"""Tables of a lake (Delta, Iceberg) whose commit is a decision: rules, names, data files, and adapters.

`entries` and `orphans` decide and are pure; `delta` is the only module that knows delta-rs; `iceberg`,
`iceberg_files` and `iceberg_upserts` are the only ones that know pyiceberg, `object_storage` the only one
that knows obstore. Each is loaded when a table is opened that needs it. Spark's sink, the dual writer's store
of a table and `tallystick lake` use them.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.lake import delta, iceberg, iceberg_files, object_storage

__all__ = ["delta", "iceberg", "iceberg_files", "object_storage"]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(__name__, {name: f"{__name__}.{name}" for name in __all__})
