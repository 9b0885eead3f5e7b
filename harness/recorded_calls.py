"""Records the system calls of the real file system layer, and plays any prefix of them back.

This ties the model of `MemoryFileSystem` to the layer in use: the calls are those that reach the kernel,
below all of our code, and the model only decides what a power loss may make of them.
"""

import os
from collections.abc import Sequence

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.value import Value
from tallystick.storage.disk.fs import Buffer, Syscalls


class SystemCall(Value):
    """One call that changed or synced something; paths are relative to the root of the recording."""

    name: str
    path: str
    data: bytes = b""
    size: int = 0
    target: str = ""


class RecordingSyscalls(Syscalls):
    """Passes every call on, and keeps it when it succeeded [FS-1]."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self.calls: list[SystemCall] = []
        self._root = root
        self._paths: dict[int, str] = {}
        self.open = self._open
        self.writev = self._writev
        self.fdatasync = self._sync
        self.fsync = self._sync
        self.ftruncate = self._ftruncate
        self.close = self._close
        self.rename = self._rename
        self.unlink = self._unlink
        self.mkdir = self._mkdir
        self.rmdir = self._rmdir

    def _relative(self, path: str) -> str:
        return "" if path == self._root else os.path.relpath(path, self._root)

    def _open(self, path: str, flags: int, mode: int) -> int:
        is_new = flags & os.O_CREAT and not os.path.exists(path)
        fd = os.open(path, flags, mode)
        self._paths[fd] = self._relative(path)
        if is_new:
            self.calls.append(SystemCall("create", self._paths[fd]))
        return fd

    def _writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        written_bytes = os.writev(fd, buffers)
        self.calls.append(SystemCall("write", self._paths[fd], data=b"".join(buffers)[:written_bytes]))
        return written_bytes

    def _sync(self, fd: int) -> None:
        os.fsync(fd)
        name = "sync_dir" if os.path.isdir(f"/proc/self/fd/{fd}") else "sync"
        if not self._paths[fd].startswith(".."):
            self.calls.append(SystemCall(name, self._paths[fd]))

    def _ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)
        self.calls.append(SystemCall("truncate", self._paths[fd], size=size))

    def _close(self, fd: int) -> None:
        self._paths.pop(fd)
        os.close(fd)

    def _rename(self, old: str, new: str) -> None:
        os.replace(old, new)
        self.calls.append(SystemCall("rename", self._relative(old), target=self._relative(new)))

    def _unlink(self, path: str) -> None:
        os.unlink(path)
        self.calls.append(SystemCall("remove", self._relative(path)))

    def _mkdir(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)
        if path.startswith(f"{self._root}/"):
            self.calls.append(SystemCall("mkdir", self._relative(path)))

    def _rmdir(self, path: str) -> None:
        os.rmdir(path)
        self.calls.append(SystemCall("rmdir", self._relative(path)))


def replay_calls(calls: Sequence[SystemCall]) -> MemoryFileSystem:
    """Return a disk to which exactly these calls were made; `crash` then decides what of them it keeps."""
    fs = MemoryFileSystem()
    for call in calls:
        match call.name:
            case "create":
                fs.open_append(call.path)
            case "write":
                fs.open_append(call.path).write([call.data])
            case "sync":
                fs.open_append(call.path).sync()
            case "sync_dir":
                fs.sync_dir(call.path)
            case "truncate":
                fs.open_append(call.path).truncate(call.size)
            case "rename":
                fs.rename(call.path, call.target)
            case "remove":
                fs.remove(call.path)
            case "mkdir":
                fs.mkdir(call.path)
            case "rmdir":
                fs.rmdir(call.path)
    return fs
