"""`tallystick demo`: 336,776 flights through a pipeline while its parts are killed, and the verdict.

Exit code 0 only if an independent reader finds each row exactly once.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tallystick.cli.cluster_command import Exit, complain, run
from tallystick.cli.interrupts import interruptible
from tallystick.pipeline.demo.show import Crash, Outcome, Setting, Show, crashes_on

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    *,
    rows: Annotated[int | None, typer.Option(min=1, help="Only the first flights of the year.")] = None,
    crash: Annotated[
        list[Crash] | None, typer.Option(help="What is killed, repeatable, in this order.")
    ] = None,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = Setting().master,
    work_dir: Annotated[
        Path | None, typer.Option(help="Keep all files there; otherwise they are removed after a success.")
    ] = None,
) -> None:
    """Show that no row is lost or duplicated, whatever is killed."""
    console = Console(highlight=False)
    possible = crashes_on(master)
    for each in crash or ():
        if each not in possible:
            raise typer.BadParameter(f"there is no {each} to kill on {master}", param_hint="--crash")
    setting = Setting(master=master, rows=rows, crashes=crash or possible)
    with interruptible(), _folder(work_dir) as folder:
        outcome = Show(folder, setting, _saying(console)).run()
        console.print(_verdict(outcome, folder, kept=work_dir is not None or not outcome.good))
        if not outcome.good:
            raise typer.Exit(Exit.FAILED)


def _saying(console: Console) -> Callable[[str], None]:
    began = time.monotonic()

    def say(line: str) -> None:
        style = "bold red" if line.startswith("KILLED") else ""
        console.print(
            Text.assemble((f"{time.monotonic() - began:6.1f} s  ", "dim"), (line, style)), soft_wrap=True
        )

    return say


def _verdict(outcome: Outcome, folder: Path, *, kept: bool) -> Panel:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    for column in ("expected", "found", "missing", "duplicated", "wrong"):
        table.add_column(column, justify="right")
    for each in outcome.verdicts:
        numbers = (each.expected, each.found, each.missing, each.duplicated, each.wrong)
        table.add_row(each.where, *(f"{number:,}" for number in numbers))
    facts = Table.grid(padding=(0, 3, 0, 0))
    facts.add_row("crashes survived", f"{len(outcome.survived)}: {', '.join(outcome.survived) or 'none'}")
    facts.add_row("drivers that failed", f"{outcome.failures}{', started again' if outcome.failures else ''}")
    resolved = outcome.in_doubt - outcome.left
    facts.add_row(
        "transactions in doubt", f"{outcome.in_doubt}, {resolved} resolved, {outcome.left} still open"
    )
    facts.add_row("seconds in all", f"{outcome.seconds:.0f}")
    facts.add_row("look further", _further(folder, kept))
    said = Table.grid()
    said.add_row(table)
    said.add_row("")
    said.add_row(facts)
    good = outcome.good
    title = "every row, exactly once" if good else "NOT exactly once"
    return Panel(said, title=title, border_style="green" if good else "red", expand=False)


def _further(folder: Path, kept: bool) -> str:
    return f"{folder}/flights.toml, pipeline.log" if kept else "docs/pipeline.md; --work-dir keeps the files"


@contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    """Provide the chosen folder, or a temporary one that is kept only if the demo fails."""
    if chosen is None:
        made = Path(tempfile.mkdtemp(prefix="tallystick-demo-"))
        yield made
        shutil.rmtree(made, ignore_errors=True)
        return
    chosen.mkdir(parents=True, exist_ok=True)
    yield chosen


def main(words: list[str]) -> int:
    """Run the command and return its exit code."""
    try:
        return run(app, "demo", words)
    except KeyboardInterrupt:
        return complain("interrupted", Exit.INTERRUPTED)
