"""The program `tallystick console` beside a broker: what happens in the cluster is seen in an open page."""

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.browser import open_tab

from tallystick import Producer
from tallystick.testing import EmbeddedBroker

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.server, pytest.mark.gate(0), pytest.mark.broker(in_process=False)]

TALLYSTICK = [sys.executable, "-m", "tallystick.cli.main"]


class ConsoleProgram:
    """A process with the console. It may be stopped and started again, and is at the same address then."""

    def __init__(self, broker: EmbeddedBroker, *options: str) -> None:
        self._options = ["--bootstrap-server", broker.bootstrap_servers, *options]
        self._process: subprocess.Popen[str] | None = None
        self.url = "http://127.0.0.1:0"

    def start(self) -> None:
        listen = self.url.removeprefix("http://")
        command = [*TALLYSTICK, "console", *self._options, "--listen", listen]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        match = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert match is not None, line
        self.url = match[0]

    def stop(self) -> None:
        """End it as a supervisor does; pages that are open are no reason to complain."""
        if self._process is not None:
            self._process.terminate()
            _, complaints = self._process.communicate()
            self._process = None
            assert complaints == ""

    def __enter__(self) -> "ConsoleProgram":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def test_a_transaction_comes_and_goes_in_an_open_page(broker: EmbeddedBroker, browser: "Browser") -> None:
    """The page is loaded once. While the transaction is prepared the console is stopped and started again."""
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": "seen-1",
        "transaction.two.phase.commit.enable": True,
    }
    with (
        Producer(config) as producer,
        ConsoleProgram(broker) as console,
        open_tab(browser, console.url) as tab,
    ):
        producer.init_transactions()
        page = tab.follow("/transactions")
        page.evaluate("window.mark = 'the same document'")
        page.wait_for_selector("text=No transaction is open.")
        producer.begin_transaction()
        producer.send("seen", b"1")
        producer.flush()
        page.wait_for_selector("#txn-seen-1 >> text=Ongoing")
        token = str(producer.prepare_transaction())
        assert token in page.inner_text("#txn-seen-1")

        console.stop()
        page.wait_for_selector("#live[data-state=away]")
        assert page.locator("#txn-seen-1").is_visible()
        console.start()
        page.wait_for_selector("#live[data-state=live]")
        tab.expect_failed_loads()
        page.wait_for_selector("#txn-seen-1 >> text=waits for a decision")
        producer.commit_transaction()
        page.wait_for_selector("#txn-seen-1", state="detached")
        assert page.evaluate("window.mark") == "the same document"
        assert tab.problems == []
