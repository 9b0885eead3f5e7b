"""What a live broker and a live console serve: the names and labels that rules and dashboard rest on."""

import asyncio
import urllib.request
from pathlib import Path

import pytest
from tests.integration.metrics.test_metrics_access import ask, serving
from tests.support.monitoring import Exported, list_expressions, list_families
from tests.unit.metrics.test_monitoring import expose_broker

from tallystick.console import ConsoleThread
from tallystick.console.collect.config import CollectorConfig
from tallystick.metrics.families import broker as families_of_broker
from tallystick.testing import EmbeddedBroker, eventually

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
    missing = {
        each.name
        for each in list_families(families_of_broker)
        if not {each.name, each.name.removesuffix("_total")} & served
    }
    assert missing == set()
    assert {name: labels for name, labels in live.labels.items() if labels != declared.labels[name]} == {}


def test_a_live_console_serves_its_metrics(tmp_path: Path) -> None:
    """A whole scrape over a socket, of a console that reads a real broker."""

    with EmbeddedBroker(in_process=True) as broker:
        config = CollectorConfig.check(
            {"bootstrap.servers": broker.bootstrap_servers}, [f"sqlite:///{tmp_path / 'shop.db'}"]
        )
        with ConsoleThread(config) as console:
            text = eventually(lambda: read_metrics(console.address), deadline_s=60)
    live = Exported()
    live.read(text)
    known = {*live.labels, *live.without_samples}
    named = {selector.name for each in list_expressions() for selector in each.selectors}
    of_console = ("tallystick_cluster_", "tallystick_console_", "tallystick_store_")
    assert {name for name in named if name.startswith(of_console)} <= known


def read_metrics(address: str) -> str:
    """Return the console's metrics once it has read the broker; nothing before that."""
    text = read(f"{address}metrics")
    return text if "\ntallystick_cluster_brokers 1.0" in text else ""


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
        return text
