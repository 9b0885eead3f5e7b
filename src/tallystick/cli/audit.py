"""Audit lines of commands that change transactions: on stderr, and in a file."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path
from typing import Annotated

import typer

AuditLog = Annotated[
    Path | None, typer.Option("--audit-log", metavar="FILE", help="Append the audit lines here, too.")
]


@contextmanager
def write_audit_lines(path: Path | None) -> Iterator[None]:
    """Write the audit lines to stderr, and to a file if there is one."""
    log = logging.getLogger("tallystick.audit")
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if path is not None:
        try:
            handlers.append(logging.FileHandler(path))
        except OSError as exc:
            raise typer.BadParameter(f"--audit-log {path}: {exc.strerror}") from exc
    for handler in handlers:
        handler.setFormatter(logging.Formatter(f"%(asctime)s audit {getuser()}: %(message)s"))
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
