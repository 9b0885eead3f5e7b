"""The tool that generates blocking modules from asyncio ones."""

import subprocess
import sys
from textwrap import dedent

import pytest
from tools.async_to_sync import ROOT, TWINS, Twin, generate, translate


def test_async_and_await_go_and_comments_stay() -> None:
    source = """\
    class AsyncStore:
        \"\"\"An AsyncStore: `await store.claim()`.\"\"\"

        async def claim(self) -> AsyncIterator[int]:  # before await begin()
            async with self.lock as held:
                yield await self.begin(held)
    """
    assert translate(dedent(source)) == dedent("""\
    class Store:
        \"\"\"A Store: `store.claim()`.\"\"\"

        def claim(self) -> Iterator[int]:  # before begin()
            with self.lock as held:
                yield self.begin(held)
    """)


@pytest.mark.parametrize(
    ("source", "twin"),
    [
        ("x = (await f()).y", "x = f().y"),
        ("return (await f(1))[0]", "return f(1)[0]"),
        ("f(await g())", "f(g())"),
        ("f((await g()).h)", "f(g().h)"),
        ("x = (await f() or 1).y", "x = (f() or 1).y"),
        ("call: Callable[[], Awaitable[list[T]]] | None", "call: Callable[[], list[T]] | None"),
        ("await read_async(_AsyncReader(1))", "read(_Reader(1))"),
        (
            "from tallystick.dualwrite.aio.pool import WriterPool",
            "from tallystick.dualwrite.blocking.pool import WriterPool",
        ),
    ],
)
def test_an_expression_is_what_one_would_write(source: str, twin: str) -> None:
    if source.startswith("from"):
        assert translate(source) == twin
    else:
        assert translate(f"async def a():\n    {source}\n") == f"def a():\n    {twin}\n"


def test_a_text_to_replace_that_is_not_there_is_an_error() -> None:
    twin = Twin(source=TWINS[0].source, target=TWINS[0].target, texts={"not there": ""})
    with pytest.raises(ValueError, match="not there"):
        generate(twin)


@pytest.mark.slow
def test_every_twin_is_what_its_source_generates() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.async_to_sync", "--check"], cwd=ROOT, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"")
