"""What a live broker and a live console serve: the names and labels that rules and dashboard rest on."""

import asyncio
import urllib.request
from pathlib import Path

import pytest
from tests.integration.test_metrics_access import ask, serving
from tests.support.monitoring import Exported, list_expressions
from tests.unit.metrics.test_monitoring import expose_broker

from tallystick.broker.metrics.broker_metrics import FAMILIES
from tallystick.console import serve
from tallystick.console.collect.collector import Collector
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.health import Limits
from tallystick.console.listen import ListenOptions
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server


def test_a_live_broker_serves_every_metric_with_the_labels_that_rules_name(tmp_path: Path) -> None:
    async def scrape() -> str:
        async with serving(tmp_path, {}) as service:
            return (await ask(service)).partition("\r\n\r\n")[2]

    live, declared = Exported(), Exported()
    live.read(asyncio.run(scrape()))
    declared.read(expose_broker())
    # The parser calls a counter without samples by its name without `_total`.
    served = {*live.labels, *live.without_samples}
    missing = {each.name for each in FAMILIES if not {each.name, each.name.removesuffix("_total")} & served}
    assert missing == set()
    assert {name: labels for name, labels in live.labels.items() if labels != declared.labels[name]} == {}


def test_a_live_console_serves_its_metrics(tmp_path: Path) -> None:
    """A whole scrape over a socket, of a console that reads a real broker."""

    async def run(servers: str) -> str:
        config = CollectorConfig.check({"bootstrap.servers": servers}, [f"sqlite:///{tmp_path / 'shop.db'}"])
        answers: asyncio.Queue[str] = asyncio.Queue()
        async with Collector(config) as collector:
            server = asyncio.create_task(
                serve(collector, ListenOptions(port=0), Limits(), answers.put_nowait)
            )
            try:
                async with asyncio.timeout(60):
                    address = await answers.get()
                    while True:
                        text = await asyncio.to_thread(read, f"{address}metrics")
                        if "\ntallystick_cluster_brokers 1.0" in text:
                            return text
            finally:
                server.cancel()
                await asyncio.gather(server, return_exceptions=True)

    with EmbeddedBroker(in_process=True) as broker:
        text = asyncio.run(run(broker.bootstrap_servers))
    live = Exported()
    live.read(text)
    known = {*live.labels, *live.without_samples}
    named = {selector.name for each in list_expressions() for selector in each.selectors}
    of_console = ("tallystick_cluster_", "tallystick_console_", "tallystick_store_")
    assert {name for name in named if name.startswith(of_console)} <= known


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
        return text
