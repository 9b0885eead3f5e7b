"""Metrics as values and as text, and `ClientMetrics`, which exports those of clients and dual writes.

    from prometheus_client import REGISTRY
    from tallystick.metrics import ClientMetrics

It needs `pip install '.[metrics]'`. docs/reference/metrics.md lists every metric.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.metrics.clients import ClientMetrics

__all__ = ["ClientMetrics"]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(__name__, {"ClientMetrics": "tallystick.metrics.clients:ClientMetrics"})
