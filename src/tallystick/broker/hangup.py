"""SIGHUP: files and settings are read again, and nothing ends.

A terminal that is closed sends it, too, so it can come at any time and more than once. Whatever cannot be
used leaves in force what was there before, and the log says why.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.dynamic_config import RereadConfig
from tallystick.broker.notify import READY, Notifier
from tallystick.kernel.settings import BadConfig

_log = logging.getLogger("tallystick.broker")


class Rereadable(Protocol):
    """A service whose files and settings can be read again."""

    async def refresh_files(self) -> None:
        """Put changed keys, certificates and credentials in use; what cannot be used is logged."""
        ...

    async def take_reread_config(self, read: BrokerConfig) -> RereadConfig:
        """Change what can be changed now. Raises: BadConfig."""
        ...


class HangupWatch:
    """Waits for SIGHUP from its making on; one rereading runs at a time. Lives on the loop."""

    def __init__(self) -> None:
        """Take the signal, unless this is not the main thread: then it is the embedding program's."""
        self._is_wanted = asyncio.Event()
        with suppress(ValueError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.request)

    def request(self) -> None:
        """Ask for one rereading, which begins when the one under way has ended."""
        self._is_wanted.set()

    async def run(self, reread: Callable[[], Awaitable[None]]) -> None:
        """Read again whenever the signal comes, or has come before."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            try:
                await reread()
            except Exception:
                _log.exception("SIGHUP: not everything could be read again")


async def reread_all(
    service: Rereadable, read_config: Callable[[], BrokerConfig] | None, notifier: Notifier
) -> None:
    """Read files and settings again.

    Args:
        read_config: returns the configuration as a start would read it; blocking. None: only files are read.
    """
    notifier.send_reloading()
    try:
        settings = "" if read_config is None else " and settings"
        _log.info("SIGHUP: keys, credentials%s are read again", settings)
        await service.refresh_files()
        if read_config is not None:
            await _reread_config(service, read_config)
    except Exception:
        notifier.send(READY)
        raise
    notifier.send(READY)  # not if it was cancelled: then the broker stops


async def _reread_config(service: Rereadable, read_config: Callable[[], BrokerConfig]) -> None:
    try:
        reread = await service.take_reread_config(await asyncio.to_thread(read_config))
    except BadConfig as exc:
        _log.error("SIGHUP: the settings before stay in force: %s", "; ".join(str(exc).splitlines()))
        return
    if reread.waiting:
        _log.warning("SIGHUP: changed, and in force after a restart: %s", ", ".join(reread.waiting))
    _log.info("SIGHUP: settings changed: %s", ", ".join(reread.changed) or "none")
