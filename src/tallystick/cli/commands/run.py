"""`tallystick run PIPELINE.toml`: starts a pipeline, shows its progress, and stops it cleanly.

Exit codes, beyond those of every command: 1 a query failed (stderr says what happened, what is safe and what
to do), 2 the file is invalid, 0 also after SIGINT or SIGTERM, which ask for a clean stop.
"""

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tallystick import _lazy
from tallystick import pipeline as pipelines
from tallystick.cli.exits import ExitCode, interruptible, print_error
from tallystick.cli.tables import OutputFormat
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.secret import hide_logins
from tallystick.pipeline.definition import Definition
from tallystick.pipeline.explanation import Section, explain
from tallystick.pipeline.mode_probe import probe_mode
from tallystick.pipeline.progress import Progress, describe_failure
from tallystick.spark.checkpoint import find_local_folder
from tallystick.spark.protocol.decide import NewCheckpoint, NewPrefix

if TYPE_CHECKING:
    from tallystick.pipeline.runner import DecisionStatus, Running

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_REFRESH_S: Final = 0.25
_LOG_NAME: Final = "tallystick.log"
# PySpark's loggers of errors in a query; each writes to what standard error was when it was made.
_QUERY_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@app.command()
def pipeline(
    file: Annotated[Path, typer.Argument(metavar="PIPELINE.toml", show_default=False)],
    *,
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, and end.")] = False,
    explained: Annotated[
        bool, typer.Option("--explain", help="Print the plan and what it guarantees; start nothing.")
    ] = False,
    output: Annotated[
        OutputFormat, typer.Option("--output", help="json: a line for each batch.")
    ] = OutputFormat.TABLE,
    on_new_checkpoint: Annotated[
        NewCheckpoint, typer.Option(help="If the pipeline has decisions and the checkpoint is new.")
    ] = NewCheckpoint.REFUSE,
    on_new_prefix: Annotated[
        NewPrefix, typer.Option(help="If the checkpoint continues and its decisions are missing.")
    ] = NewPrefix.REFUSE,
    log_file: Annotated[
        Path | None, typer.Option(help="Where Spark's log goes; tallystick.log in the checkpoint's folder.")
    ] = None,
) -> None:
    """Run a pipeline until it is stopped, or with --once to its present end; see docs/pipeline.md."""
    pipeline = pipelines.Pipeline.from_file(file)
    if explained:
        sections, code = _explain(pipeline.definition)
        _print_plan(sections, output)
        raise typer.Exit(code)
    log = log_file or _choose_log_file(pipeline.definition)
    stop_requested = Event()
    with interruptible(), _redirect_output(log), _explain_failure(log), ExitStack() as stack:
        running = pipeline.start(once, on_new=on_new_checkpoint, on_new_prefix=on_new_prefix)
        stack.callback(running.stop)
        # Only now, because Spark installs its own handler when it starts.
        for number in _SIGNALS:
            signal.signal(number, lambda *_: stop_requested.set())
        print(_format_title(running), file=sys.stderr)
        _show_progress(running, output, stop_requested)
        failed = _report_failure(running, log)
    if failed:
        raise typer.Exit(ExitCode.FAILED)


# ---------------------------------------------------------------------------------- the plan


def _explain(definition: Definition) -> tuple[list[Section], ExitCode]:
    try:
        return explain(definition, probe_mode(definition)), ExitCode.DONE
    except TallystickError as exc:
        code = print_error(f"the cluster was not asked: {exc}", ExitCode.INCOMPLETE)
        return explain(definition, None), code


def _print_plan(sections: Sequence[Section], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print(json.dumps(dict(sections), indent=2))
        return
    console = Console(highlight=False)
    for title, lines in sections:
        console.print(Text(title, style="bold"))
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)


# -------------------------------------------------------------------------------- how it goes


@dataclass
class _ProgressDisplay:
    """Latest progress of each output, for the display."""

    progress: dict[str, Progress] = field(default_factory=dict)
    decided: "dict[str, DecisionStatus]" = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def build_table(self, outputs: Sequence[str]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for column in ("output", "batch", "rows", "rows/s", "ms", "lag", "decided", "mode", "in doubt"):
            table.add_column(column, justify="left" if column in ("output", "mode") else "right")
        for name in outputs:
            table.add_row(name, *self._build_cells(name))
        return table

    def _build_cells(self, name: str) -> Iterator[str]:
        progress, decided = self.progress.get(name), self.decided.get(name)
        if progress is None:
            yield from ("waiting", "", "", "", "")
        else:
            yield str(progress.batch)
            yield f"{self.rows[name]:,}"
            yield f"{progress.rows_per_s:,.0f}"
            yield f"{progress.duration_ms:,}"
            yield "" if progress.lag is None else f"{progress.lag:,}"
        if decided is not None:
            yield "" if decided.last_batch is None else f"last_batch {decided.last_batch}"
            yield decided.mode
            yield str(decided.in_doubt_count)


def _show_progress(running: "Running", output: OutputFormat, stop_requested: Event) -> None:
    """Show each batch, until the queries end, one fails, or a stop is requested."""
    outputs = running.definition.outputs
    watches = {each.name: running.watch(each) for each in outputs}
    display, names = _ProgressDisplay(), [each.name for each in outputs]
    with ExitStack() as stack:
        for watch in watches.values():
            stack.callback(watch.close)
        live = stack.enter_context(Live(auto_refresh=False)) if output is OutputFormat.TABLE else None
        active = True
        while active and not stop_requested.is_set():
            active = running.active
            for progress in running.progress():
                display.progress[progress.output] = progress
                display.rows[progress.output] = display.rows.get(progress.output, 0) + progress.rows
                decided = watches[progress.output].read_status()
                if decided is not None:
                    display.decided[progress.output] = decided
                if live is None:
                    print(json.dumps(_to_json(progress, decided)), flush=True)
            if live is not None:
                live.update(display.build_table(names), refresh=True)
            stop_requested.wait(_REFRESH_S if active else 0)


def _to_json(progress: Progress, decided: "DecisionStatus | None") -> dict[str, object]:
    """Build the JSON object of a batch; the decision is null if the cluster did not report it."""
    return {
        "output": progress.output,
        "batch": progress.batch,
        "at": progress.at,
        "rows": progress.rows,
        "rows_per_s": round(progress.rows_per_s, 1),
        "duration_ms": progress.duration_ms,
        "lag": progress.lag,
        "decided_batch": None if decided is None else decided.last_batch,
        "decided_ms": None if decided is None else decided.decided_ms,
        "mode": None if decided is None else decided.mode,
        "in_doubt": None if decided is None else decided.in_doubt_count,
    }


def _format_title(running: "Running") -> str:
    own = "its own broker listens" if running.definition.kafka is None else "brokers"
    return f"{running.definition.name} runs; {own} at {running.bootstrap_servers}. Ctrl-C stops it."


def _report_failure(running: "Running", log: Path) -> bool:
    """Return whether a query failed, and explain it on stderr."""
    failed_output = running.failed
    if failed_output is None:
        return False
    output, error = failed_output
    failure = describe_failure(str(error))
    print_error(
        f"output {output.name} failed: {failure.cause}\n  safe: {failure.safety}\n  do:   {failure.advice}\n"
        f"  log:  {log}",
        ExitCode.FAILED,
    )
    logging.getLogger("tallystick.pipeline").error("output %s failed: %s", output.name, error)
    return True


@contextmanager
def _explain_failure(log: Path) -> Iterator[None]:
    """Print one line about an error of Spark or a database while the pipeline starts or stops.

    `main` prints our own errors, as for every command.
    """
    try:
        yield
    except (TallystickError, typer.Exit):
        raise
    except Exception as exc:
        failure = describe_failure(hide_logins(str(exc)))
        print_error(
            f"{failure.cause}\n  safe: {failure.safety}\n  do:   {failure.advice}\n  log:  {log}",
            ExitCode.FAILED,
        )
        logging.getLogger("tallystick.pipeline").error("the pipeline failed", exc_info=exc)
        raise typer.Exit(ExitCode.FAILED) from None


# ------------------------------------------------------------------------------------ the log


def _choose_log_file(definition: Definition) -> Path:
    folder = find_local_folder(definition.checkpoint) or Path(tempfile.gettempdir())
    return folder / _LOG_NAME


@contextmanager
def _redirect_output(log: Path) -> Iterator[None]:
    """Redirect the output of Spark's Java and its workers, and Python's logs, to `log`.

    They inherit standard error, so it is the file for the time being, and only `sys.stderr` is the terminal.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file, _redirect_query_errors(file):
        logging.basicConfig(
            filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        logging.getLogger("py4j").setLevel(logging.WARNING)
        sys.stderr.flush()
        before, number = sys.stderr, sys.stderr.fileno()
        terminal = os.dup(number)
        os.dup2(file.fileno(), number)
        sys.stderr = os.fdopen(os.dup(terminal), "w", buffering=1)
        try:
            yield
        finally:
            sys.stderr.close()
            os.dup2(terminal, number)
            os.close(terminal)
            sys.stderr = before


@contextmanager
def _redirect_query_errors(log: TextIO) -> Iterator[None]:
    """Redirect the objects that PySpark logs of errors in a query: they are said once, in words."""
    find_logger = _lazy.load("pyspark.logger").PySparkLogger.getLogger
    with ExitStack() as stack:
        for handler in (each for name in _QUERY_LOGGERS for each in find_logger(name).handlers):
            if isinstance(handler, logging.StreamHandler):
                before = handler.setStream(log)
                stack.callback(handler.setStream, before)
        yield
