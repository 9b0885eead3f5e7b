"""A store that hangs is busy, and nothing else is."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tallystick.console.collect.store_reader import NotRead, StoreAddress, StoreReader, is_read_only
from tallystick.console.collect.store_thread import StillBusy, StoreThread
from tallystick.console.model.snapshot import StoreFacts, StoreKind
from tallystick.testing import FakeClock

URL = "postgresql://me:hush@host/shop"
NAME = "postgresql://me@host/shop"


def test_a_call_that_was_given_up_keeps_the_thread_until_it_returns() -> None:
    clock, released, over = FakeClock(), threading.Event(), threading.Event()

    def hang() -> None:
        released.wait()
        over.set()

    async def run() -> None:
        thread = StoreThread("shop", clock)
        given_up = asyncio.ensure_future(thread.run(hang))
        await asyncio.sleep(0)
        given_up.cancel()
        clock.advance(34_000)
        with pytest.raises(StillBusy, match="shop has not answered for 34 s"):
            await thread.run(int)
        released.set()
        await asyncio.to_thread(over.wait)
        while True:  # until the loop has heard of it
            try:
                assert await thread.run(lambda: 7) == 7
                break
            except StillBusy:
                await asyncio.sleep(0)
        thread.close()

    asyncio.run(run())


def test_an_error_reaches_who_waits_for_it() -> None:
    async def run() -> None:
        thread = StoreThread("shop", FakeClock())
        with pytest.raises(ZeroDivisionError):
            await thread.run(lambda: 1 // 0)
        assert await thread.run(lambda: 2) == 2
        thread.close()

    asyncio.run(run())


class Source:
    """A store that fails once."""

    def __init__(self) -> None:
        self.failures = [RuntimeError(f"login to {URL} with 'hush' failed")]
        self.closed = 0

    folder = None

    def read(self) -> StoreFacts:
        if self.failures:
            raise self.failures.pop()
        return StoreFacts(name=NAME, kind=StoreKind.SQL)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("options", "of_the_file_system", "expected"),
    [("rw", "rw", False), ("ro,relatime", "rw,size=1024k", False), ("ro", "ro,size=1024k", True)],
)
def test_a_mount_that_only_this_console_may_not_write_is_no_fault(
    tmp_path: Path, options: str, of_the_file_system: str, expected: bool
) -> None:
    """A container has its database mounted read only; the writers are elsewhere."""
    device = tmp_path.stat().st_dev
    at = f"{os.major(device)}:{os.minor(device)}"
    table = tmp_path / "mountinfo"
    table.write_text(
        "23 1 0:1 / /proc rw - proc proc ro\n"
        f"36 35 {at} / /data {options} master:1 - tmpfs tmpfs {of_the_file_system}\n"
    )
    assert is_read_only(tmp_path, table) is expected
    assert not is_read_only(tmp_path, tmp_path / "none")


def test_a_connection_is_kept_until_it_fails_and_no_password_is_told() -> None:
    source, opened = Source(), []

    def open_rows(address: StoreAddress, _: int) -> Source:
        opened.append(address.url)
        return source

    async def run() -> None:
        reader = StoreReader(StoreAddress(URL), 1_000, FakeClock(), open_rows)
        with pytest.raises(NotRead) as raised:
            await reader.read()
        assert str(raised.value) == f"RuntimeError: login to {NAME} with '***' failed"
        assert (len(opened), source.closed) == (1, 1)
        await reader.read()
        await reader.read()
        assert (len(opened), source.closed) == (2, 1)
        await reader.close()
        assert source.closed == 2

    asyncio.run(run())


def test_a_reading_that_was_given_up_leaves_no_connection_behind() -> None:
    """The console ends while a store is read: the thread closes the connection when the reading returns."""
    released, closed = threading.Event(), threading.Event()

    class Slow(Source):
        def read(self) -> StoreFacts:
            released.wait()
            return StoreFacts(name=NAME, kind=StoreKind.SQL)

        def close(self) -> None:
            closed.set()

    async def run() -> None:
        reader = StoreReader(StoreAddress(URL), 1_000, FakeClock(), lambda address, limit_ms: Slow())
        reading = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0)
        reading.cancel()
        await reader.close()
        assert not closed.is_set()
        released.set()
        assert await asyncio.to_thread(closed.wait, 10)

    asyncio.run(run())


@pytest.mark.parametrize("url", ["sqlite:///shop.db", "sqlite+pysqlite:///data/shop.db"])
def test_a_store_in_a_file_has_a_name_that_means_the_same_in_every_folder(url: str) -> None:
    """Wanted: "absolute paths in commands"."""
    kind, _, place = url.partition(":///")
    assert StoreAddress(url).name == f"{kind}:///{Path(place).absolute()}"


@pytest.mark.parametrize(
    "url", ["sqlite:////a/shop.db", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?uri=true"]
)
def test_other_names_of_stores_are_as_they_were_given(url: str) -> None:
    assert StoreAddress(url).name == url


def test_a_store_of_a_server_is_no_file() -> None:
    assert StoreAddress("postgresql://me:secret@host/shop").name == "postgresql://me@host/shop"
