"""A transcript of wrong calls that meet servers, stores and files, in `cli/wrong_calls_at_servers.txt`.

Those that are wrong by their words alone are in `cli/wrong_calls.txt`.

A block is a call, its exit code, and what it answers: `|` begins a line of stdout, `!` one of stderr. Words
in braces stand for what differs from run to run. To accept what the command says now, run `make
scripts-rewrite` (TALLYSTICK_REWRITE_SCRIPTS=1) and read the diff as a stranger would: what was wrong, and
what is to be typed instead?
"""

import io
import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from sqlalchemy import create_engine
from tests.support.raw_producer import make_topic

from tallystick.cli.main import main
from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

FILE = Path(__file__).parent / "cli" / "wrong_calls_at_servers.txt"
REWRITES = os.environ.get("TALLYSTICK_REWRITE_SCRIPTS") == "1"
CALLS_MIN = 100
NO_HOST = "no-such-host.invalid"
CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+"), "{time}"),
    (re.compile(r"audit \w+:"), "audit {user}:"),
    (re.compile(r"port \d+ failed"), "port {port} failed"),
)
SILENT_LOGS = ("tallystick.broker", "tallystick.storage", "asyncio")


class Place:
    """Servers and files that wrong calls meet, and the words that stand for them in the transcript."""

    def __init__(self, words: Mapping[str, str], folder: Path) -> None:
        self.words, self.folder = words, folder

    def fill(self, text: str) -> str:
        for word, value in self.words.items():
            text = text.replace(f"{{{word}}}", value)
        return text

    def hide(self, text: str) -> str:
        for word, value in sorted(self.words.items(), key=lambda item: -len(item[1])):
            text = text.replace(value, f"{{{word}}}")
        for pattern, word in CHANGING:
            text = pattern.sub(word, text)
        return text


def listen_without_answer(stack: ExitStack) -> str:
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return f"127.0.0.1:{server.getsockname()[1]}"


def refuse_connections(stack: ExitStack) -> str:
    bound = stack.enter_context(socket.socket())
    bound.bind(("127.0.0.1", 0))  # and does not listen
    return f"127.0.0.1:{bound.getsockname()[1]}"


def serve_http(stack: ExitStack) -> str:
    """Answer whatever arrives as a web server does that does not understand it."""

    class Answer(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1024)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    server = stack.enter_context(ThreadingTCPServer(("127.0.0.1", 0), Answer))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    return f"127.0.0.1:{server.server_address[1]}"


def make_files(folder: Path, broker: EmbeddedBroker) -> None:
    (folder / "folder").mkdir()
    (folder / "latin.properties").write_bytes("client.id=B\u00fcro\n".encode("latin-1"))
    (folder / "tls.properties").write_text("security.protocol=SSL\n")
    (folder / "typo.properties").write_text("bootstrap.servrs=localhost:9092\n")
    (folder / "number.properties").write_text(f"bootstrap.servers={broker.bootstrap_servers}\nretries=many\n")
    (folder / "no-ca.properties").write_text(
        f"security.protocol=SSL\nssl.truststore.location={folder}/ca.pem\n"
    )
    (folder / "empty").write_text("")
    for each in folder.iterdir():  # what others may read is told of, and depends on the umask
        each.chmod(0o700 if each.is_dir() else 0o600)
    (folder / "text.db").write_text("this is no database\n" * 10)
    (folder / "broken.toml").write_text("name = \n")
    create_engine(f"sqlite:///{folder / 'other.db'}").connect().close()
    store = SqlStore(create_engine(f"sqlite:///{folder / 'shop.db'}"))
    store.create()
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "shop-1"}
    with DualWriter(store, config) as writer:
        writer.recover()


@pytest.fixture(scope="module")
def place(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("calls")
    with ExitStack() as stack:
        make_topic(broker, "orders")
        make_files(folder, broker)
        words = {
            "broker": broker.bootstrap_servers,
            "refuses": refuse_connections(stack),
            "silent": listen_without_answer(stack),
            "http": serve_http(stack),
            "folder": str(folder),
        }
        yield Place(words, folder)


@pytest.fixture
def at_home(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the calls in the folder, 100 columns wide, with no terminal, no profile, and warnings on stderr."""

    def look_up(host: str, *args: Any, **kwargs: Any) -> Any:
        if host == NO_HOST:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *args, **kwargs)

    known = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TALLYSTICK_CONFIG_HOME", str(place.folder / "config"))
    monkeypatch.delenv("TALLYSTICK_BOOTSTRAP_SERVER", raising=False)
    last = logging.lastResort
    assert last is not None
    last.addFilter(is_of_a_command)
    logging.getLogger().addHandler(last)
    yield
    logging.getLogger().removeHandler(last)
    last.removeFilter(is_of_a_command)


def is_of_a_command(record: logging.LogRecord) -> bool:
    return not record.name.startswith(SILENT_LOGS)


def read_blocks() -> list[list[str]]:
    return [block.splitlines() for block in FILE.read_text("utf-8").strip().split("\n\n")]


def find_calls() -> list[str]:
    return [line[2:] for block in read_blocks() for line in block if line.startswith("$ ")]


def answer_lines(code: int, out: str, err: str) -> list[str]:
    told = [
        f"{mark} {line}".rstrip() for mark, text in (("|", out), ("!", err)) for line in text.splitlines()
    ]
    return [f"exit {code}", *told]


def run_here(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(words)
    return code, *capsys.readouterr()


def run_shell(call: str, place: Place) -> tuple[int, str, str]:
    """Run what has a redirection or a pipe as its user does: in a shell, as a process."""
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", place.fill(call)],
        capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def answer(call: str, place: Place, capsys: pytest.CaptureFixture[str]) -> list[str]:
    if re.search(r" [|<>]", call):
        code, out, err = run_shell(call, place)
    else:
        words = [place.fill(word) for word in shlex.split(call)[1:]]
        code, out, err = run_here(words, capsys)
    return answer_lines(code, place.hide(out), place.hide(err))


@pytest.mark.slow
@pytest.mark.usefixtures("at_home")
def test_every_wrong_call_is_answered_as_written(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """ "A list of 100 wrong calls with their answers as a transcript test: no traceback"."""
    written, said = [], []
    for block in read_blocks():
        call = next((line[2:] for line in block if line.startswith("$ ")), None)
        head = [line for line in block if line.startswith(("#", "$"))]
        answered = [] if call is None else answer(call, place, capsys)
        written.append("\n".join(block))
        said.append("\n".join([*head, *answered]))
    if REWRITES:
        FILE.write_text("\n\n".join(said) + "\n", "utf-8")
    else:
        assert said == written


def test_no_answer_is_a_traceback_or_says_nothing() -> None:
    """Those of the transcript: a call that is wrong is told so, and its exit code says it."""
    blocks = [block for block in read_blocks() if any(line.startswith("$ ") for line in block)]
    assert len(blocks) >= CALLS_MIN
    for block in blocks:
        text = "\n".join(block)
        assert "Traceback" not in text, text
        assert "exit 0" not in block, text
        assert any(line.startswith(("! ", "| ")) for line in block), text


def test_no_call_stands_twice() -> None:
    calls = find_calls()
    assert len(set(calls)) == len(calls)
