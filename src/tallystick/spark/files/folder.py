"""Access to the files of a checkpoint: the port, and its implementation for a local folder."""

import os
from pathlib import Path
from typing import Protocol


class CheckpointFiles(Protocol):
    """The files of one checkpoint. Names are relative, like `offsets/3`."""

    def read(self, name: str) -> str:
        """Return the text of a file. Raises: FileNotFoundError; OSError, ValueError."""

    def exists(self, name: str) -> bool:
        """Return whether there is such a file or folder. Raises: OSError."""

    def list_names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no folder. Raises: OSError."""

    def write(self, name: str, text: str) -> None:
        """Write a file whole or not at all, and its folder, if need be. Raises: OSError."""

    def __str__(self) -> str:
        """Return the location."""


class LocalFiles:
    """The files of a checkpoint in a folder that this process can see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def exists(self, name: str) -> bool:
        return (self.folder / name).exists()

    def list_names(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in (self.folder / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def write(self, name: str, text: str) -> None:
        """Write atomically and durably: a crash leaves all of it or nothing."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def __str__(self) -> str:
        return str(self.folder)


class SparkFiles(Protocol):
    """Access to the file systems that Spark knows."""

    @property
    def default_is_local(self) -> bool:
        """Whether a location without a scheme is on the local disk."""

    def open(self, location: str) -> CheckpointFiles:
        """Return the files of a checkpoint. Has no effect yet."""
