"""Names of worker processes: one live process each, and what their ids were used for outlives them."""

import os
import signal
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.spark.protocol.committable import BatchLease, DecisionSummary
from tallystick.spark.sink.task import worker_names
from tallystick.spark.sink.task.worker_ids import WorkerIdPool
from tallystick.spark.sink.task.worker_names import NameFile, UnsharedName, acquire_name

CLUSTER = "127.0.0.1:9092 p"
OWNER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def acquire() -> Callable[..., NameFile]:
    drawn = count()

    def acquire(cluster: str = CLUSTER) -> NameFile:
        name = acquire_name(cluster, lambda: f"{os.getpid():08x}{next(drawn):08x}")
        assert isinstance(name, NameFile)
        return name

    return acquire


Acquire = Callable[..., NameFile]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("tallystick-workers-*/*/*.worker"))


def lease(nonce: str, decided: str | None = None) -> BatchLease:
    summary = None if decided is None else DecisionSummary(nonce=decided, query_id="q", batch_id=1)
    return BatchLease(nonce=nonce, coordinator=OWNER, transaction_version=2, last_decision=summary)


def test_two_live_processes_have_two_names(acquire: Acquire) -> None:
    """[SPK-20]"""
    first, second = acquire(), acquire()
    assert first.text != second.text


def test_a_name_is_handed_on_when_its_process_has_ended(acquire: Acquire) -> None:
    first, second = acquire(), acquire()
    first.last_nonces.append("n1")
    first.save()
    first.close()
    third = acquire()
    assert (third.text, third.last_nonces) == (first.text, ["n1"])
    assert acquire().text not in (second.text, third.text)


def test_names_are_not_handed_on_to_another_prefix_or_cluster(acquire: Acquire) -> None:
    first = acquire("127.0.0.1:9092 p")
    first.close()
    assert acquire("127.0.0.1:9092 q").text != first.text


@pytest.mark.slow
def test_kill_9_ends_the_lock_and_not_the_nonce(acquire: Acquire) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            ids = WorkerIdPool("p", acquire_name=acquire)
            os.write(writing, str(ids.acquire(lease("n1"))).encode())
            signal.pause()
        finally:
            os._exit(1)
    try:
        os.close(writing)
        used = os.read(reading, 1000).decode()
        assert used.endswith("/0")
        other = acquire()
        assert other.text not in used
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
    ids = WorkerIdPool("p", acquire_name=acquire)
    assert str(ids.acquire(lease("n1"))) == f"{used.removesuffix('0')}1"


def test_ids_of_processes_that_live_for_one_task_are_bounded(acquire: Acquire) -> None:
    """[SPK-20] [SPK-23] As with `spark.python.worker.reuse=false`: 40 batches of 4 tasks."""
    used: set[str] = set()
    before: set[str] = set()
    for batch in range(40):
        held = [acquire() for _ in range(2)]  # two tasks run at a time
        now = set()
        for _ in range(2):
            for each in held:
                ids = WorkerIdPool("p", acquire_name=lambda each=each: each)  # type: ignore[misc]
                now.add(str(ids.acquire(lease(f"n{batch}", f"n{batch - 1}" if batch else None))))
                each.close()
            held = [acquire() for _ in range(2)]
        for each in held:
            each.close()
        assert len(now) == 4
        assert not now & before, "of the last decision"
        before = now
        used |= now
    assert len(used) <= 2 * 4


@pytest.fixture
def ended(acquire: Acquire) -> NameFile:
    """Return the name of a process that has ended."""
    name = acquire()
    name.last_nonces.append("n1")
    name.save()
    name.close()
    return name


def test_a_file_of_an_earlier_boot_is_not_believed(
    acquire: Acquire, ended: NameFile, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last write may be missing after a power loss."""
    monkeypatch.setattr(worker_names, "identify_host", lambda: "host later-boot")
    name = acquire()
    assert name.text != ended.text
    assert [each.stem for each in files(folder)] == [name.text]


@pytest.mark.parametrize("content", [b"", b'{"v":1,"host":', b'{"v":2}\n', b"[]\n", b"\xff\n"])
def test_a_file_that_cannot_be_read_is_removed(
    acquire: Acquire, ended: NameFile, folder: Path, content: bytes
) -> None:
    (path,) = files(folder)
    path.write_bytes(content)
    name = acquire()
    assert name.text != ended.text
    assert [each.stem for each in files(folder)] == [name.text]


def test_what_a_longer_line_left_behind_is_not_read(acquire: Acquire, ended: NameFile, folder: Path) -> None:
    """The process may end between the line and the cut."""
    (path,) = files(folder)
    path.write_bytes(path.read_bytes() + b'"n2"]}\n')
    assert acquire().last_nonces == ended.last_nonces


def test_a_file_that_is_removed_meanwhile_is_another_one(acquire: Acquire, folder: Path) -> None:
    first = acquire()
    (path,) = files(folder)
    path.unlink()
    assert acquire().text != first.text


def test_a_folder_that_others_may_write_to_is_not_used(folder: Path) -> None:
    place = folder / f"tallystick-workers-{os.getuid()}"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    assert isinstance(acquire_name(CLUSTER, lambda: "a"), UnsharedName)
    assert files(folder) == []


def test_files_shared_with_a_group_by_default_do_not_prevent_it(acquire: Acquire) -> None:
    """Some distributions set umask 002; the folder is for its user alone all the same."""
    before = os.umask(0o002)
    try:
        first = acquire()
        first.close()
        assert acquire().text == first.text
    finally:
        os.umask(before)


def test_without_a_usable_folder_a_name_ends_with_its_process(folder: Path) -> None:
    (folder / f"tallystick-workers-{os.getuid()}").write_text("a file")
    assert acquire_name(CLUSTER, lambda: "a").text == "a"


def test_an_id_that_cannot_be_noted_is_not_used(acquire: Acquire, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process would take it for a free one, and abort what this one has prepared."""
    ids = WorkerIdPool("p", lambda: "f" * 16, acquire_name=acquire)
    assert ids.acquire(lease("n1")).worker != "f" * 16

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert str(ids.acquire(lease("n2"))) == f"p/w/{'f' * 16}/0"
