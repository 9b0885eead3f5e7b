"""Files in Hadoop's file systems, through the Java of a classic Spark session: HDFS, S3A, ABFS, GCS, viewfs.

They are those of Spark itself, with its configuration and its credentials: what Spark can write, we can.

A note is written under another name and renamed. A rename makes it visible whole on HDFS; an object store
copies it, and a copy is visible whole. A note that replaces another one is deleted before; a crash in between
leaves none, as in a checkpoint of an earlier version, and the next batch writes it.
"""

import uuid
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from tallystick.spark.files.folder import CheckpointFiles

if TYPE_CHECKING:
    from pyspark import SparkContext

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum size of a file that is read: the offsets of a batch, by far."""
_DEFAULTS: "Final[WeakKeyDictionary[SparkContext, bool]]" = WeakKeyDictionary()
"""Whether the default file system of a context is the local disk. Java is asked once."""
_MISSING: Final = "java.io.FileNotFoundException"


class HadoopSystem:
    """The file systems of a classic session; threads may share it."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def default_is_local(self) -> bool:
        context = self._session.sparkContext
        if context not in _DEFAULTS:
            default = context._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
            _DEFAULTS[context] = str(default).startswith("file:")
        return _DEFAULTS[context]

    def open(self, location: str) -> CheckpointFiles:
        # As streams do: the session's settings are Hadoop's, too.
        configuration = self._session._jsparkSession.sessionState().newHadoopConf()
        return HadoopFiles(self._session, configuration, location)


class HadoopFiles:
    """The files of one checkpoint."""

    def __init__(self, session: SparkSession, configuration: Any, location: str) -> None:
        self._jvm: Any = session.sparkContext._jvm
        self._configuration, self._location = configuration, location

    def read(self, name: str) -> str:
        try:
            path = self._path(name)
            system = path.getFileSystem(self._configuration)
            size = system.getFileStatus(path).getLen()
            if size > FILE_BYTES_MAX:
                raise OSError(f"{path.toString()}: {size} bytes; at most {FILE_BYTES_MAX} are read")
            stream = system.open(path)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JError as exc:
            raise _to_os_error(exc) from exc

    def exists(self, name: str) -> bool:
        try:
            path = self._path(name)
            return bool(path.getFileSystem(self._configuration).exists(path))
        except Py4JError as exc:
            raise _to_os_error(exc) from exc

    def list_names(self, folder: str) -> list[str]:
        try:
            path = self._path(folder)
            statuses = path.getFileSystem(self._configuration).listStatus(path)
            return sorted(status.getPath().getName() for status in statuses)
        except Py4JError as exc:
            error = _to_os_error(exc)
            if isinstance(error, FileNotFoundError):
                return []
            raise error from exc

    def write(self, name: str, text: str) -> None:
        try:
            path, draft = self._path(name), self._path(f"{name}.{uuid.uuid4().hex}")
            system = path.getFileSystem(self._configuration)
            stream = system.create(draft, True)
            try:
                stream.write(bytearray(text.encode()))
                if stream.hasCapability("hsync"):
                    stream.hsync()
            finally:
                stream.close()
            if system.exists(path):
                system.delete(path, False)
            if not system.rename(draft, path):
                system.delete(draft, False)
                raise OSError(f"{path.toString()}: it was written by another process at the same time")
        except Py4JError as exc:
            raise _to_os_error(exc) from exc

    def __str__(self) -> str:
        return self._location

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._location, name)


def _to_os_error(error: Py4JError) -> OSError:
    if not isinstance(error, Py4JJavaError):
        return OSError(f"Spark cannot be asked: {error}")
    text = str(error.java_exception.toString())
    return FileNotFoundError(text) if text.startswith(_MISSING) else OSError(text)


def find_session_files() -> HadoopSystem | None:
    """Return the file systems of this process's classic session.

    None in a Python worker, and with Connect.
    """
    context = getattr(pyspark, "SparkContext", None)
    if context is None or context._active_spark_context is None:
        return None
    session = SparkSession._instantiatedSession or SparkSession.getActiveSession()
    return None if session is None else HadoopSystem(session)
