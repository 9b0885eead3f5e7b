"""`tallystick demo`: 336,776 flights through a pipeline while its parts are killed, and the verdict.

`--quick` shows payments into SQLite and a topic instead, and needs no Spark. Exit code 0 only if an
independent reader finds each row exactly once.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tallystick import demo as demos
from tallystick.cli.demo_console import DemoConsole
from tallystick.cli.exits import ExitCode, interruptible
from tallystick.demo import ContentCheck, Crash, DemoSettings, possible_crashes

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Payments into SQLite and a topic, for 15 s, without Spark.")
    ] = False,
    rows: Annotated[int | None, typer.Option(min=1, help="Only the first flights of the year.")] = None,
    crash: Annotated[
        list[Crash] | None, typer.Option(help="What is killed, repeatable, in this order.")
    ] = None,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = DemoSettings().master,
    work_dir: Annotated[
        Path | None, typer.Option(help="Keep all files there; otherwise they are removed after a success.")
    ] = None,
    stay: Annotated[
        bool, typer.Option("--console", help="Leave broker, database and console open in the end.")
    ] = False,
) -> None:
    """Show that no row is lost or duplicated, whatever is killed."""
    possible = possible_crashes(master)
    for each in crash or ():
        if each not in possible:
            raise typer.BadParameter(f"{master} has no {each} to kill", param_hint="--crash")
    settings = DemoSettings(master=master, rows=rows, crashes=crash or possible)
    if quick and settings != DemoSettings():
        raise typer.BadParameter(
            "there are no --rows, --crash and --master without Spark", param_hint="--quick"
        )
    stage = _Stage(Console(highlight=False), stay=stay, kept=work_dir is not None)
    with interruptible(), _open_folder(work_dir) as folder, stage.show_activity():
        is_exact = stage.show_payments(folder) if quick else stage.show_flights(folder, settings)
        if not is_exact:
            raise typer.Exit(ExitCode.FAILED)


class _Stage:
    """Shows a demo on a terminal, and its result."""

    def __init__(self, console: Console, *, stay: bool, kept: bool) -> None:
        """Prepare to show.

        Args:
            kept: whether the files of a success stay where they are.
        """
        self._console, self._stay, self._kept = console, stay, kept

    def show_activity(self) -> AbstractContextManager[object]:
        """Turn something on a terminal, below the lines, until this ends."""
        return self._console.status("at work; Ctrl-C ends it")

    def show_payments(self, folder: Path) -> bool:
        """Run the quick demo, and return whether each row is in the topic exactly once."""

        def show(result: "demos.PaymentsResult") -> None:
            facts = [
                ("killed with kill -9", ", ".join(f"{part} {n}x" for part, n in result.kills.items())),
                (
                    "in doubt after a kill",
                    f"{result.committed} committed in Kafka, {result.aborted} aborted, as SQLite said",
                ),
                ("seconds in all", f"{result.seconds:.0f}"),
                *self._list_files(folder, "payments.db, writers.log"),
                ("your own service", "docs/how-to/add-to-your-service.md: dual writes in four steps"),
                ("with Spark, too", "tallystick demo: flights, PostgreSQL and a Delta table; needs [demo]"),
            ]
            self._print_result(result.checks, facts, is_exact=result.is_exactly_once)

        say = _make_printer(self._console)
        if self._stay:
            with closing(DemoConsole[demos.PaymentsResult](say, show, stay=True)) as audience:
                return demos.PaymentsRun(folder, audience.say, audience).run().is_exactly_once
        result = demos.PaymentsRun(folder, say).run()
        show(result)
        return result.is_exactly_once

    def show_flights(self, folder: Path, settings: DemoSettings) -> bool:
        """Run the demo on Spark, and return whether each row is everywhere exactly once."""

        def show(result: "demos.DemoResult") -> None:
            again = ", started again" if result.failures else ""
            resolved = result.in_doubt - result.open_transactions
            facts = [
                ("crashes survived", f"{len(result.survived)}: {', '.join(result.survived) or 'none'}"),
                ("drivers that failed", f"{result.failures}{again}"),
                (
                    "transactions in doubt",
                    f"{result.in_doubt}, {resolved} resolved, {result.open_transactions} still open",
                ),
                ("seconds in all", f"{result.seconds:.0f}"),
                *self._list_files(folder, "flights.toml, pipeline.log"),
                *_tell_whole(settings),
                ("look further", "docs/pipeline.md"),
            ]
            self._print_result(result.checks, facts, is_exact=result.is_exactly_once)

        say = _make_printer(self._console)
        with closing(DemoConsole[demos.DemoResult](say, show, stay=self._stay)) as audience:
            return demos.DemoRun(folder, settings, audience.say, audience).run().is_exactly_once

    def _list_files(self, folder: Path, names: str) -> Iterator[tuple[str, str]]:
        yield "files", f"{folder}/{names}" if self._kept else "--work-dir FOLDER keeps them"

    def _print_result(
        self, checks: Sequence[ContentCheck], facts: Sequence[tuple[str, str]], *, is_exact: bool
    ) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        table.add_column("")
        for column in ("expected", "found", "missing", "duplicated", "wrong"):
            table.add_column(column, justify="right")
        for each in checks:
            numbers = (each.expected, each.actual, each.missing, each.duplicated, each.wrong)
            table.add_row(each.target, *(f"{number:,}" for number in numbers))
        fact_table = Table.grid(padding=(0, 3, 0, 0))
        for fact in facts:
            fact_table.add_row(*map(Text, fact))
        content = Table.grid()
        for part in (table, "", fact_table):
            content.add_row(part)
        title = "every row, exactly once" if is_exact else "NOT exactly once"
        self._console.print(
            Panel(content, title=title, border_style="green" if is_exact else "red", expand=False)
        )


def _tell_whole(settings: DemoSettings) -> Iterator[tuple[str, str]]:
    if settings.rows is not None:
        yield "the whole year", "tallystick demo: 336,776 flights, and executors that are killed, too"


def _make_printer(console: Console) -> Callable[[str], None]:
    started_at = time.monotonic()

    def say(line: str) -> None:
        style = "bold red" if line.startswith("KILLED") else ""
        console.print(
            Text.assemble((f"{time.monotonic() - started_at:6.1f} s  ", "dim"), (line, style)), soft_wrap=True
        )

    return say


@contextmanager
def _open_folder(work_dir: Path | None) -> Iterator[Path]:
    """Provide the chosen folder, or a temporary one that is kept only if the demo fails.

    Raises: BadParameter, for a folder with files: a former demo's payments are no part of this one.
    """
    if work_dir is None:
        folder = Path(tempfile.mkdtemp(prefix="tallystick-demo-"))
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
        return
    work_dir.mkdir(parents=True, exist_ok=True)
    if any(work_dir.iterdir()):
        raise typer.BadParameter(f"{work_dir} is not empty", param_hint="--work-dir")
    yield work_dir
