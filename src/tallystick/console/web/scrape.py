"""`/metrics`: the newest state as text for Prometheus.

A scrape reads nothing from the cluster. Its text is written in a thread, one scrape at a time, so that
several scrapers, or one with a short interval, hold up no page.
"""

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from tallystick import __version__
from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.state import ConsoleState
from tallystick.console.views.metrics import read_metrics
from tallystick.kernel.clock import Clock
from tallystick.metrics.exposition import PrometheusText

METRICS_PATH: Final = "/metrics"


class MetricsPage:
    """Answers scrapes. Used on one event loop."""

    def __init__(self, feed: StateFeed, clock: Clock) -> None:
        """Load prometheus_client. Raises: MissingLibrary."""
        self._feed, self._clock = feed, clock
        self._text = PrometheusText()
        self._lock = asyncio.Lock()

    async def show(self, request: Request) -> Response:
        """Answer with the metrics, as OpenMetrics if the scraper accepts that."""
        accept = request.headers.get("accept", "")
        async with self._lock:
            body, content_type = await asyncio.to_thread(
                self._format, accept, self._feed.state, self._clock.now_ms()
            )
        return Response(body, media_type=content_type)

    def _format(self, accept: str, state: ConsoleState, now_ms: int) -> tuple[bytes, str]:
        readings = [(family, list(samples)) for family, samples in read_metrics(state, now_ms, __version__)]
        return self._text.format_for(accept, readings)
