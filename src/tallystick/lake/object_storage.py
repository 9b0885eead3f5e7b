"""A table's data files in an object store, through obstore. The only module that knows it.

obstore wraps the Rust library that delta-rs has inside (`object_store`), so it takes the same options.
delta-rs knows more logins (profiles, assumed roles): `DeltaLakeTable.check_fence` finds out where the two do
not reach the same place. An object is durable, and visible as a whole, when its upload has ended.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from tallystick.kernel.secret import HIDDEN, chain, hide_logins
from tallystick.kernel.settings import BadConfig
from tallystick.lake.ports import ListedFile

PART_BYTES: Final = 8 * 1024 * 1024
"""Size of an upload's parts, of which S3 takes 10,000 of 5 MiB or more."""
_PARTS_AT_ONCE: Final = 4
PROBE_PATH: Final = "_delta_log/_tallystick_probe"
"""An object that is created once in a table, and then stays: who creates it again must be refused."""
# Options of the connection: obstore takes them apart from those of the store, and delta-rs does not.
_CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "disable_system_certificates",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)
_PREFIXES: Final = ("aws_", "azure_", "google_")
# Of delta-rs' own calls: they do not change what a file is, nor who writes it.
_LOG_OPTIONS: Final = ("allow_unsafe_rename", "concurrency_limit", "s3_locking_provider")
_DURATION: Final = re.compile(r"(\d+) *(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


class ObjectStorage:
    """The objects below one URL."""

    buffer_bytes = PART_BYTES

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """Bind to the address; no request is sent yet.

        Args:
            options: by their names in delta-rs, such as AWS_ENDPOINT_URL.
        Raises: BadConfig.
        """
        try:
            self._store: Any = from_url(url, **_split_options(options))
        except (BaseError, OSError, ValueError) as exc:
            raise BadConfig(
                f"{url}: the options of the storage do not suit obstore, which writes the data files: "
                f"{_hide_values(_summarize(exc), options)}"
            ) from None  # its text quotes the value that it does not take, which may be a key

    def create(self, path: str) -> "_Upload":
        return _Upload(
            obstore.open_writer(self._store, path, buffer_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        )

    def finish(self, path: str, sink: "_Upload") -> int:
        sink.close()
        return sink.tell()

    def abandon(self, sink: "_Upload") -> None:
        sink.abort()

    def read(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None
        except BaseError as exc:
            raise OSError(f"{path}: {_summarize(exc)}") from chain(exc)

    def size(self, path: str) -> int | None:
        try:
            return obstore.head(self._store, path)["size"]
        except FileNotFoundError:
            return None
        except BaseError as exc:
            raise OSError(f"{path}: {_summarize(exc)}") from chain(exc)

    def list(self, folder: str) -> Mapping[str, ListedFile]:
        try:
            objects = obstore.list_with_delimiter(self._store, folder or None)["objects"]
        except BaseError as exc:
            raise OSError(f"{folder}: {_summarize(exc)}") from chain(exc)
        return {
            each["path"]: ListedFile(each["size"], int(each["last_modified"].timestamp() * 1000))
            for each in objects
        }

    def sync(self, path: str) -> None:
        """Do nothing: an object is durable once it is there."""

    def try_remove(self, path: str) -> None:
        with suppress(BaseError, OSError):
            obstore.delete(self._store, path)

    def find_fence_problem(self) -> str | None:
        """Create an object that is there, or twice. Raises: OSError."""
        try:
            for _ in range(2):
                obstore.put(self._store, PROBE_PATH, b"", mode="create")
        except AlreadyExistsError:
            return None
        except BaseError as exc:
            raise OSError(f"{PROBE_PATH}: {_summarize(exc)}") from chain(exc)
        return "the store has overwritten an object that was to be created only if absent (If-None-Match)"


class _Upload:
    """A file that is uploaded in parts while it is written, as pyarrow writes to it."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._size_bytes = 0
        self.closed = False

    def write(self, content: bytes) -> int:
        """Append bytes. Raises: OSError."""
        try:
            count: int = self._writer.write(content)
        except BaseError as exc:
            raise OSError(_summarize(exc)) from chain(exc)
        self._size_bytes += count
        return count

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        """Do nothing: a part goes when it is full, and the rest when the file is closed."""

    def abort(self) -> None:
        """End the upload without an object, as far as the store can be reached."""
        if not self.closed:
            self.closed = True
            with suppress(BaseError, OSError):
                self._writer.__exit__(OSError, None, None)

    def close(self) -> None:
        """End the upload: the object is there when this returns. Raises: OSError."""
        if self.closed:
            return
        self.closed = True
        try:
            self._writer.close()
        except BaseError as exc:
            raise OSError(_summarize(exc)) from chain(exc)


def _split_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of obstore for options by delta-rs' names, and for those of the environment.

    Raises: ValueError, OSError.
    """
    store: dict[str, str] = {}
    client: dict[str, Any] = {}
    retries: dict[str, Any] = {}
    # Given any option of the connection, obstore forgets those of the environment.
    for name, text in os.environ.items():
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")) and _shorten(name) in _CLIENT_OPTIONS:
            client[_shorten(name)] = text
    for name, text in options.items():
        short = _shorten(name)
        if short in _CLIENT_OPTIONS:
            client[short] = text
        elif short == "certificate_path":
            client["root_certificate"] = Path(text).read_bytes()
        elif short == "max_retries":
            retries[short] = int(text)
        elif short == "retry_timeout":
            retries[short] = _parse_duration(name, text)
        elif not short.endswith(_LOG_OPTIONS) and not short.startswith("backoff_config."):
            store[name] = text
    return {
        "config": store,
        **({"client_options": client} if client else {}),
        **({"retry_config": retries} if retries else {}),
    }


def _shorten(name: str) -> str:
    """Return an option's name as delta-rs compares it: in lower case, without the store's prefix."""
    short = name.lower()
    for prefix in _PREFIXES:
        short = short.removeprefix(prefix)
    return short


def _parse_duration(name: str, text: str) -> timedelta:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{name} {text!r} is no duration, such as 30s")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


def _summarize(error: Exception) -> str:
    """Return an error without the structures of Rust that follow it, and without a login."""
    return hide_logins(str(error).partition("\n\nDebug source:")[0].strip())


def _hide_values(text: str, options: Mapping[str, str]) -> str:
    """Return a text that does not quote the values of options, the longest of them first."""
    for value in sorted(filter(None, options.values()), key=len, reverse=True):
        text = text.replace(f'"{value}"', HIDDEN).replace(f"'{value}'", HIDDEN).replace(f"`{value}`", HIDDEN)
    return text
