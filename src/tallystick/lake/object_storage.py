"""A table's data files in an object store, through obstore. The only module that knows it.

obstore wraps the Rust library that delta-rs has inside (`object_store`), so the same storage options and the
same variables of the environment reach a table's log and its data files. An object is durable, and visible as
a whole, when its upload has ended.
"""

from collections.abc import Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from tallystick.kernel.settings import BadConfig

PART_BYTES: Final = 8 * 1024 * 1024
"""Size of an upload's parts. Several are sent at once, and S3 takes 10,000 of 5 MiB or more."""
_PROBE_BYTES: Final = 8
# Options of the connection: obstore takes them apart from those of the store, and delta-rs does not.
_CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)
_PREFIXES: Final = ("aws_", "azure_", "google_")


class ObjectStorage:
    """The objects below one URL."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """Bind to the place; nothing is asked yet.

        Args:
            options: by their names in delta-rs, such as AWS_ENDPOINT_URL.
        Raises: BadConfig.
        """
        config, client_options = _split_options(options)
        try:
            self._store: Any = from_url(url, config=config, client_options=client_options)  # type: ignore[arg-type]
        except (BaseError, ValueError) as exc:
            raise BadConfig(f"{url}: {_summarize(exc)}") from exc

    def create(self, path: str) -> "_Upload":
        return _Upload(obstore.open_writer(self._store, path, buffer_size=PART_BYTES))

    def finish(self, path: str, sink: "_Upload") -> int:
        sink.close()
        return sink.tell()

    def read(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None
        except BaseError as exc:
            raise OSError(f"{path}: {_summarize(exc)}") from exc

    def size(self, path: str) -> int | None:
        try:
            return obstore.head(self._store, path)["size"]
        except FileNotFoundError:
            return None
        except BaseError as exc:
            raise OSError(f"{path}: {_summarize(exc)}") from exc

    def list(self, folder: str) -> Mapping[str, int]:
        try:
            objects = obstore.list_with_delimiter(self._store, folder or None)["objects"]
        except BaseError as exc:
            raise OSError(f"{folder}: {_summarize(exc)}") from exc
        return {each["path"]: each["size"] for each in objects}

    def sync(self, path: str) -> None:
        """Do nothing: an object is durable once it is there."""

    def try_remove(self, path: str) -> None:
        with suppress(BaseError, OSError):
            obstore.delete(self._store, path)

    def find_fence_problem(self) -> str | None:
        """Create an object twice. Raises: OSError."""
        path = f"tallystick-probe-{token_hex(_PROBE_BYTES)}"
        try:
            for _ in range(2):
                obstore.put(self._store, path, b"may be removed", mode="create")
        except AlreadyExistsError:
            return None
        except BaseError as exc:
            raise OSError(f"{path}: {_summarize(exc)}") from exc
        finally:
            self.try_remove(path)
        return "the store has overwritten an object that was to be created only if absent (If-None-Match)"


class _Upload:
    """A file that is uploaded in parts while it is written, as pyarrow writes to it."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._size_bytes = 0
        self.closed = False

    def write(self, content: bytes) -> int:
        """Take bytes. Raises: OSError."""
        try:
            count: int = self._writer.write(content)
        except BaseError as exc:
            raise OSError(_summarize(exc)) from exc
        self._size_bytes += count
        return count

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        """Do nothing: a part goes when it is full, and the rest when the file is closed."""

    def close(self) -> None:
        """End the upload: the object is there when this returns. Raises: OSError."""
        if self.closed:
            return
        self.closed = True
        try:
            self._writer.close()
        except BaseError as exc:
            raise OSError(_summarize(exc)) from exc


def _split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the store, and those of the connection."""
    store, client = {}, {}
    for name, text in options.items():
        short = name.lower()
        for prefix in _PREFIXES:
            short = short.removeprefix(prefix)
        if short in _CLIENT_OPTIONS:
            client[short] = text
        elif not short.endswith("allow_unsafe_rename"):  # of delta-rs alone, and refused unless it is false
            store[name] = text
    return store, client


def _summarize(error: Exception) -> str:
    """Return an error without the structures of Rust that follow it."""
    return str(error).partition("\n\nDebug source:")[0].strip()
