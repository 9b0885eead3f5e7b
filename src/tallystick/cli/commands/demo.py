"""`tallystick demo`: 336,776 flights through a pipeline while its parts are killed, and the verdict.

Exit code 0 only if an independent reader finds each row exactly once.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tallystick.cli.demo_console import DemoConsole
from tallystick.cli.exits import ExitCode, interruptible
from tallystick.pipeline import demo as flights_demo
from tallystick.pipeline.demo import Crash, DemoSettings, possible_crashes

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    *,
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
    console = Console(highlight=False)
    possible = possible_crashes(master)
    for each in crash or ():
        if each not in possible:
            raise typer.BadParameter(f"{master} has no {each} to kill", param_hint="--crash")
    setting = DemoSettings(master=master, rows=rows, crashes=crash or possible)
    with interruptible(), _open_folder(work_dir) as folder:

        def show(outcome: "flights_demo.DemoResult") -> None:
            kept = work_dir is not None or not outcome.is_exactly_once
            console.print(_render_result(outcome, folder, kept=kept))

        with closing(DemoConsole(_make_printer(console), show, stay=stay)) as audience:
            outcome = flights_demo.DemoRun(folder, setting, audience.say, audience).run()
        if not outcome.is_exactly_once:
            raise typer.Exit(ExitCode.FAILED)


def _make_printer(console: Console) -> Callable[[str], None]:
    started_at = time.monotonic()

    def say(line: str) -> None:
        style = "bold red" if line.startswith("KILLED") else ""
        console.print(
            Text.assemble((f"{time.monotonic() - started_at:6.1f} s  ", "dim"), (line, style)), soft_wrap=True
        )

    return say


def _render_result(outcome: "flights_demo.DemoResult", folder: Path, *, kept: bool) -> Panel:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    for column in ("expected", "found", "missing", "duplicated", "wrong"):
        table.add_column(column, justify="right")
    for each in outcome.checks:
        numbers = (each.expected, each.actual, each.missing, each.duplicated, each.wrong)
        table.add_row(each.target, *(f"{number:,}" for number in numbers))
    facts = Table.grid(padding=(0, 3, 0, 0))
    facts.add_row("crashes survived", f"{len(outcome.survived)}: {', '.join(outcome.survived) or 'none'}")
    facts.add_row("drivers that failed", f"{outcome.failures}{', started again' if outcome.failures else ''}")
    resolved = outcome.in_doubt - outcome.open_transactions
    facts.add_row(
        "transactions in doubt",
        f"{outcome.in_doubt}, {resolved} resolved, {outcome.open_transactions} still open",
    )
    facts.add_row("seconds in all", f"{outcome.seconds:.0f}")
    facts.add_row("look further", _format_hint(folder, kept))
    content = Table.grid()
    content.add_row(table)
    content.add_row("")
    content.add_row(facts)
    exactly_once = outcome.is_exactly_once
    title = "every row, exactly once" if exactly_once else "NOT exactly once"
    return Panel(content, title=title, border_style="green" if exactly_once else "red", expand=False)


def _format_hint(folder: Path, kept: bool) -> str:
    return f"{folder}/flights.toml, pipeline.log" if kept else "docs/pipeline.md; --work-dir keeps the files"


@contextmanager
def _open_folder(work_dir: Path | None) -> Iterator[Path]:
    """Provide the chosen folder, or a temporary one that is kept only if the demo fails."""
    if work_dir is None:
        folder = Path(tempfile.mkdtemp(prefix="tallystick-demo-"))
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
        return
    work_dir.mkdir(parents=True, exist_ok=True)
    yield work_dir
