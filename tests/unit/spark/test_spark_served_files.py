"""Files that the driver's Python serves to its workers: the same as in the folder, and nothing else."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tallystick.kernel.value import replace
from tallystick.spark import checkpoint
from tallystick.spark.files import hadoop, served
from tallystick.spark.files.folder import CheckpointFiles, LocalFiles
from tallystick.spark.files.served import (
    CONNECTIONS_MAX,
    FilesAddress,
    ServedSystem,
    find_served_files,
    serve,
    use_served_files,
)
from tallystick.spark.protocol.decide import DecisionLocation
from tallystick.testing.waiting import eventually

pytestmark = pytest.mark.server


class Folders:
    """Stands for Spark's file systems: `far:/a` is a folder."""

    def __init__(self, folder: Path, *, default_is_local: bool = True) -> None:
        self.folder, self.default_is_local = folder, default_is_local

    def open(self, location: str) -> CheckpointFiles:
        if "broken" in location:
            raise RuntimeError("the name node is away")
        return LocalFiles(self.folder / location.removeprefix("far:/"))


@pytest.fixture
def address(tmp_path: Path) -> FilesAddress:
    return serve(Folders(tmp_path))


@pytest.fixture
def worker(address: FilesAddress, monkeypatch: pytest.MonkeyPatch) -> Iterator[FilesAddress]:
    """Without a session of its own, as a worker is."""
    monkeypatch.setattr(hadoop, "find_session_files", lambda: None)
    use_served_files(address)
    yield address
    use_served_files(None)


def ask(address: FilesAddress, line: bytes, token: bytes | None = None) -> bytes:
    first = address.token.encode() if token is None else token
    with socket.create_connection(("127.0.0.1", address.port), 10) as connection, suppress(ConnectionError):
        connection.sendall(first + b"\n" + line + b"\n")
        with connection.makefile("rb") as lines:
            return lines.readline()
    return b""


def request(address: FilesAddress, **changes: Any) -> bytes:
    whole = {"method": "read", "location": "far:/a", "name": "metadata", "text": ""}
    return json.dumps({**whole, **changes}).encode()


def test_files_are_those_of_the_folder(address: FilesAddress, tmp_path: Path) -> None:
    files = ServedSystem(address).open("far:/a")
    assert files.list_names("tallystick") == []
    assert not files.exists("metadata")
    with pytest.raises(FileNotFoundError):
        files.read("metadata")
    files.write("tallystick/b-1.json", "ä\n")
    assert files.read("tallystick/b-1.json") == "ä\n"
    assert (tmp_path / "a" / "tallystick" / "b-1.json").read_text() == "ä\n"
    assert files.list_names("tallystick") == ["b-1.json"]
    with pytest.raises(OSError, match="the name node is away"):
        ServedSystem(address).open("far:/broken").read("metadata")


def test_the_last_session_is_served_at_one_address(address: FilesAddress, tmp_path: Path) -> None:
    (tmp_path / "other" / "a").mkdir(parents=True)
    (tmp_path / "other" / "a" / "metadata").write_text("other")
    again = serve(Folders(tmp_path / "other", default_is_local=False))
    assert replace(again, default_is_local=True) == address
    assert ServedSystem(address).open("far:/a").read("metadata") == "other"


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "tallystick/../x.json", "offsets/x", "commits/0", ""]
)
def test_only_files_of_a_checkpoint_may_be_named(address: FilesAddress, name: str) -> None:
    for method in ("read", "write", "exists", "list_names"):
        answer = json.loads(ask(address, request(address, method=method, name=name)))
        assert "is no file of a checkpoint" in answer["error"]


@pytest.mark.parametrize("token", [b"", b"x" * 64, "ä".encode(), b"{}", b"x" * 4_000_000])
def test_without_the_token_there_is_no_answer(address: FilesAddress, tmp_path: Path, token: bytes) -> None:
    assert ask(address, request(address, method="write", text="x"), token) == b""
    assert list(tmp_path.iterdir()) == []


def test_without_the_token_no_more_than_its_line_is_read(address: FilesAddress) -> None:
    """A stranger on the host must not fill the driver's memory."""
    with socket.create_connection(("127.0.0.1", address.port), 10) as connection:
        connection.sendall(b"x" * 65)  # the token's line is full, and the rest is not waited for
        assert connection.recv(1) == b""


@pytest.mark.gate(0)
def test_connections_are_bounded(
    address: FilesAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served._Handler, "timeout", 300)  # no idle one makes room meanwhile
    with ExitStack() as stack:
        for _ in range(2 * CONNECTIONS_MAX):
            last = stack.enter_context(socket.create_connection(("127.0.0.1", address.port), 120))
        assert last.recv(1) == b"", "closed at once"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "metadata").write_text("q")
    eventually(lambda: ask(address, request(address)))  # once the idle ones have gone


@pytest.mark.parametrize("line", [b"", b"[]", b"null", b"GET / HTTP/1.1", b"\xff"])
def test_what_is_no_request_has_no_answer(address: FilesAddress, line: bytes) -> None:
    assert ask(address, line) == b""


def test_an_unknown_method_is_said(address: FilesAddress) -> None:
    assert "no method 'delete'" in ask(address, request(address, method="delete")).decode()


def test_the_token_is_not_printed(address: FilesAddress) -> None:
    assert address.token not in repr(address)
    assert str(address.port) in repr(address)


def test_a_checkpoint_of_another_scheme_is_the_drivers(worker: FilesAddress, tmp_path: Path) -> None:
    """[SPK-29] [SPK-30] Every note is where the checkpoint is."""
    (tmp_path / "a" / "offsets").mkdir(parents=True)
    (tmp_path / "a" / "metadata").write_text('{"id": "q"}')
    (tmp_path / "a" / "offsets" / "3").write_text("v1\n{}\n{}")
    assert checkpoint.read_query_id("far:/a") == "q"
    assert checkpoint.read_end_offsets("far:/a", 3) == "{}"
    assert checkpoint.read_decision_locations("far:/a", "p") == ()
    home = DecisionLocation(prefix="p", location="topic")
    checkpoint.write_decision_location("far:/a", home)
    assert checkpoint.read_decision_locations("far:/a", "p") == (home,)
    kept = checkpoint.SchemaNote(subject="s", schema_id=7)
    for _ in range(2):
        assert checkpoint.keep_schema("far:/a", "s", lambda note: note or kept) == kept
    assert checkpoint.read_query_id("far:/new") is None
    assert checkpoint.read_query_id(str(tmp_path / "a")) == "q"
    with pytest.raises(checkpoint.BadCheckpoint, match="name node is away"):
        checkpoint.read_query_id("far:/broken")


def test_without_a_scheme_the_default_file_system_decides(worker: FilesAddress, tmp_path: Path) -> None:
    assert type(checkpoint.open_checkpoint("/data")) is LocalFiles
    use_served_files(replace(worker, default_is_local=False))
    assert type(checkpoint.open_checkpoint("/data")) is not LocalFiles
    assert type(checkpoint.open_checkpoint(f"file:{tmp_path}")) is LocalFiles


def test_a_worker_of_a_session_that_serves_nothing_reaches_no_far_checkpoint(worker: FilesAddress) -> None:
    """As with Spark Connect."""
    use_served_files(None)
    assert find_served_files() is None
    assert checkpoint.open_checkpoint("far:/a") is None
    assert checkpoint.read_query_id("far:/a") is None


def test_a_driver_that_is_gone_is_said(worker: FilesAddress) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    use_served_files(replace(worker, port=port))
    with pytest.raises(checkpoint.BadCheckpoint, match="refused"):
        checkpoint.read_query_id("far:/a")
