"""The console of `tallystick demo`: its events include every kill."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tallystick import console as consoles
from tallystick._lazy import MissingLibrary
from tallystick.console.collect.config import CollectorConfig, Pace, Paces
from tallystick.console.model.health import Limits

PACES = Paces(transactions=Pace(interval_ms=1_000), cluster=Pace(interval_ms=5_000))
LIMITS = Limits(grace_ms=20_000)
"""A driver that was killed is started again within seconds, and decides what it has left."""


R = TypeVar("R")


class DemoConsole(Generic[R]):
    """Watches a demo through the console, where its extra is installed."""

    def __init__(
        self,
        print_line: Callable[[str], None],
        show: Callable[[R], None],
        *,
        stay: bool,
    ) -> None:
        """Watch a demo.

        Args:
            show: prints the result.
            stay: wait in the end for Ctrl-C, while broker, database and console are still there.
        """
        self._print_line, self._show, self._stay = print_line, show, stay
        self._console: consoles.ConsoleThread | None = None

    def say(self, line: str) -> None:
        """Print a line, and show it among the console's events."""
        self._print_line(line)
        if self._console is not None:
            self._console.note("demo", line)

    def begin(self, bootstrap_servers: str, database_url: str) -> None:
        """Start the console, and say where it is.

        Raises: MissingLibrary, if the console was requested and its extra is not installed.
        """
        store = database_url.replace("postgresql://", "postgresql+psycopg://", 1)
        config = CollectorConfig.check({"bootstrap.servers": bootstrap_servers}, [store], paces=PACES)
        try:
            console = consoles.ConsoleThread(config, limits=LIMITS)
        except MissingLibrary as exc:
            if self._stay:
                raise
            self._print_line(f"there is nothing to watch it with: {exc}")
            return
        console.start()
        self._console = console
        self._print_line(f"watch it in a browser: {console.address}")

    def end(self, result: R) -> None:
        """Show the result, and stay if requested."""
        self._show(result)
        if self._console is None or not self._stay:
            self.close()
            return
        self._print_line(f"broker, database and console stay, {self._console.address}; Ctrl-C ends them")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            self._print_line("ended")
        self.close()

    def close(self) -> None:
        """End the console, before what it reads is ended. A second call does nothing."""
        console, self._console = self._console, None
        if console is not None:
            console.close()
