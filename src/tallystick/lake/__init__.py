"""Tables of a lake (Delta) whose commit is a decision: rules, names, data files, and adapters.

`entries` and `orphans` decide and are pure; `delta` is the only module that knows delta-rs, and is loaded
when a Delta table is opened. Spark's sink and `tallystick lake` use them.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.lake import delta

__all__ = ["delta"]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(__name__, {"delta": f"{__name__}.delta"})
