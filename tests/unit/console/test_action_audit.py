"""The audit log: on the disk before anything is sent, one line each, whatever a name contains."""

import json
import logging
import os
from pathlib import Path

import pytest

from tallystick.console.actions.audit import AuditEvent, AuditLine, AuditLog
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace

LINE = AuditLine(
    event=AuditEvent.INTENT,
    at="2026-11-26T00:00:00.000+00:00",
    user="me",
    action="abort",
    subject="a\nb\x1b[31m\u202e",
    state="Kafka: Ongoing.",
    digest="d",
    command="tallystick",
)


def test_a_line_is_synced_before_it_is_said_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[ACT-5]"""
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    log.write(LINE)
    assert sizes == [len(path.read_bytes())]
    assert sizes[0] > 0


def test_a_line_is_one_line_of_ascii(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    with caplog.at_level(logging.WARNING, "tallystick.audit"):
        log.write(LINE)
        log.write(replace(LINE, event=AuditEvent.RESULT, outcome="done"))
    lines = path.read_text(encoding="ascii").splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["intent", "result"]
    assert json.loads(lines[0])["subject"] == LINE.subject
    assert [record.getMessage() for record in caplog.records] == lines


def test_the_file_may_be_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.write(LINE)
    path.rename(tmp_path / "audit.1")
    log.write(LINE)
    assert len(path.read_text().splitlines()) == 1


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"event": "int')
    AuditLog(path).write(LINE)
    assert json.loads(path.read_text().splitlines()[1])["user"] == "me"


def test_a_file_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="--audit-log"):
        AuditLog(tmp_path / "none" / "audit.jsonl")


def test_a_failing_sync_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        log.write(LINE)
