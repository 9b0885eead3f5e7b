"""Metadata of the broker in SQLite: topics, configs, ACLs, credentials, producer ids, the cluster id.

The store is blocking and durable: when a method returns, its change survives power loss (`synchronous=FULL`
on a write-ahead log), and is in the file itself: a copy of it without its `-wal` file lacks nothing. The
broker calls it from one thread, and changes its own image of the metadata, which handlers read, only after
the store has answered [MET-1].

Source: docs/adr/0011-metadata-in-sqlite.md.
"""

import logging
import os
import sqlite3
import stat
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec import field

from tallystick.broker.authorizer.bindings import AccessControlEntry, AclBinding, ResourcePattern
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import INT64_MAX, ProducerId
from tallystick.kernel.value import Value
from tallystick.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from tallystick.security.sasl.scram import ScramCredential

_log = logging.getLogger("tallystick.broker")

T = TypeVar("T")

PRODUCER_ID_BLOCK: Final = 1000
FILE_NAME: Final = "metadata.sqlite"
IN_MEMORY: Final = Path(":memory:")
"""SQLite's name for a database without a file."""
# Exceptions of a failed or full disk during a change of files or metadata.
STORAGE_FAILURES: Final = (OSError, TallystickError, sqlite3.Error)
_FORMAT: Final = 3
_DECOY_SECRET: Final = "scram.decoy.secret"
_DECOY_SECRET_BYTES: Final = 32
_FILE_MODE: Final = 0o600
_LOG_SUFFIXES: Final = ("-wal", "-shm", "-journal")
_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO

_SCHEMA: Final = """
    CREATE TABLE cluster (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE topic (
        name TEXT PRIMARY KEY, id BLOB NOT NULL UNIQUE, partitions INTEGER NOT NULL CHECK (partitions > 0)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE topic_config (
        topic TEXT NOT NULL REFERENCES topic ON DELETE CASCADE, name TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (topic, name)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE deleted_topic (
        id BLOB PRIMARY KEY, name TEXT NOT NULL, partitions INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE broker_config (
        broker TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (broker, name)
    ) STRICT, WITHOUT ROWID;
"""

# What each format added to the one before it, from 2 on. A new file goes through all of them.
_STEPS: Final[Mapping[int, str]] = MappingProxyType(
    {
        2: """
    CREATE TABLE acl (
        resource_type INTEGER NOT NULL, name TEXT NOT NULL, pattern_type INTEGER NOT NULL,
        principal TEXT NOT NULL, host TEXT NOT NULL, operation INTEGER NOT NULL, permission INTEGER NOT NULL,
        PRIMARY KEY (resource_type, name, pattern_type, principal, host, operation, permission)
    ) STRICT, WITHOUT ROWID;
""",
        3: """
    CREATE TABLE scram_credential (
        user TEXT NOT NULL, mechanism INTEGER NOT NULL, salt BLOB NOT NULL, stored_key BLOB NOT NULL,
        server_key BLOB NOT NULL, iterations INTEGER NOT NULL, PRIMARY KEY (user, mechanism)
    ) STRICT, WITHOUT ROWID;
""",
    }
)


class MetadataUnusable(TallystickError):
    """The metadata file cannot be read, or was written by a newer version."""


class Topic(Value):
    """Definition of a topic; `configs` are its own settings, as texts."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


def _make_no_room() -> None:
    """Do nothing: there is room, or there is no reserve to take it from."""


class MetadataStore:
    """The metadata file. Owned by the broker, used by one thread at a time; a method is one transaction."""

    def __init__(
        self,
        path: Path,
        cluster_id: str,
        make_room: Callable[[], None] = _make_no_room,
        *,
        may_create: bool = True,
    ) -> None:
        """Open the file, or create it for `load_cluster_id`. Raises: MetadataUnusable.

        Args:
            make_room: called before each write: a topic can be deleted on a full disk, too [RSV-1].
            may_create: whether a file without tables is a new one.
        """
        self._path = path
        self._make_room = make_room
        try:
            if path != IN_MEMORY:
                _close_to_others(path)
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            # Exclusive access: no shared-memory file next to the write-ahead log.
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            _check_file(self._db, path, may_create=may_create)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            # Each change goes on into the file: changes are rare, and people copy the file alone.
            self._db.execute("PRAGMA wal_autocheckpoint = 1")
            self._prepare(cluster_id)
            # Random bytes, always the same, that unknown users' credentials are invented from.
            self.decoy_secret = bytes.fromhex(self._get(_DECOY_SECRET) or "")
        except (sqlite3.DatabaseError, OSError) as exc:
            is_damaged = _get_sqlite_error_code(exc) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
            remedy = ". Restore it from a backup" if is_damaged else ""
            raise MetadataUnusable(f"{path}: {exc}{remedy}") from exc

    def _prepare(self, cluster_id: str) -> None:
        (stored_format,) = self._db.execute("PRAGMA user_version").fetchone()
        if stored_format > _FORMAT:
            raise MetadataUnusable(
                f"{self._path}: has format {stored_format}, but this version reads up to {_FORMAT}; nothing"
                " was changed. Start the newer version that wrote it"
            )
        if stored_format == 0:
            with self._transaction():
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._set("cluster.id", cluster_id)
                self._upgrade(1)
        elif stored_format < _FORMAT:
            with self._transaction():
                self._upgrade(stored_format)
            _log.warning(
                "%s: format %d raised to %d: older versions cannot read it from now on",
                self._path,
                stored_format,
                _FORMAT,
            )
        if self._get(_DECOY_SECRET) is None:
            with self._transaction():
                self._set(_DECOY_SECRET, token_hex(_DECOY_SECRET_BYTES))

    def _upgrade(self, stored_format: int) -> None:
        """Bring the tables from an earlier format to this one, within the caller's transaction."""
        for number in range(stored_format + 1, _FORMAT + 1):
            for statement in _STEPS[number].split(";"):
                self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {_FORMAT}")

    def _transaction(self) -> "_SqliteTransaction":
        self._make_room()
        return _SqliteTransaction(self._db)

    def _get(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM cluster WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def _set(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO cluster VALUES (?, ?)", (name, value))

    # ------------------------------------------------------------------------ reading

    def load_cluster_id(self) -> str:
        return self._get("cluster.id") or ""

    def load_topics(self) -> list[Topic]:
        configs: dict[str, dict[str, str]] = {}
        for topic, name, value in self._db.execute("SELECT topic, name, value FROM topic_config"):
            configs.setdefault(topic, {})[name] = value
        rows = self._db.execute("SELECT name, id, partitions FROM topic ORDER BY name")
        return [
            Topic(name, uuid.UUID(bytes=topic_id), partitions, MappingProxyType(configs.get(name, {})))
            for name, topic_id, partitions in rows
        ]

    def load_deleted_topics(self) -> list[Topic]:
        """Return deleted topics whose files may still exist."""
        rows = self._db.execute("SELECT name, id, partitions FROM deleted_topic")
        return [Topic(name, uuid.UUID(bytes=topic_id), partitions) for name, topic_id, partitions in rows]

    def load_broker_configs(self) -> dict[str, dict[str, str]]:
        """Return dynamic settings by broker id as text; the empty text is the default of all brokers."""
        return _load_broker_configs(self._db)

    @property
    def is_private(self) -> bool:
        """Whether no other user of this machine may read the file: secrets may be stored."""
        try:
            return not self._path.stat().st_mode & _OF_OTHERS
        except FileNotFoundError:
            return True  # in memory, or deleted: not to be read either way

    def load_features(self) -> tuple[int, dict[str, int]]:
        """Return the epoch of the finalized feature levels, and those that were ever set."""
        rows = self._db.execute("SELECT name, value FROM cluster WHERE name LIKE 'feature.%'")
        levels = {name.removeprefix("feature."): int(value) for name, value in rows}
        return int(self._get("features.epoch") or "0"), levels

    def load_acls(self) -> list[AclBinding]:
        rows = self._db.execute(
            "SELECT resource_type, name, pattern_type, principal, host, operation, permission FROM acl"
        )
        return [
            AclBinding(
                ResourcePattern(AclResource(kind), name, AclPattern(pattern)),
                AccessControlEntry(principal, host, AclOperation(operation), AclPermission(permission)),
            )
            for kind, name, pattern, principal, host, operation, permission in rows
        ]

    def load_scram_credentials(self) -> dict[tuple[str, int], ScramCredential]:
        """Return credentials by user and number of the mechanism."""
        rows = self._db.execute(
            "SELECT user, mechanism, salt, stored_key, server_key, iterations FROM scram_credential"
        )
        return {(user, mechanism): ScramCredential(*parts) for user, mechanism, *parts in rows}

    # ----------------------------------------------------------------------- changing

    def change_scram_credentials(self, changes: Mapping[tuple[str, int], ScramCredential | None]) -> None:
        """Set credentials, and remove those that are None: all of them, or, if the process ends, none."""
        with self._transaction():
            for (user, mechanism), new in changes.items():
                self._db.execute(
                    "DELETE FROM scram_credential WHERE user = ? AND mechanism = ?", (user, mechanism)
                )
                if new is not None:
                    row = user, mechanism, new.salt, new.stored_key, new.server_key, new.iterations
                    self._db.execute("INSERT INTO scram_credential VALUES (?, ?, ?, ?, ?, ?)", row)

    def change_acls(self, *, add: Iterable[AclBinding] = (), remove: Iterable[AclBinding] = ()) -> None:
        """Add and remove ACLs: all of them, or, if the process ends, none."""
        with self._transaction():
            self._db.executemany(
                "DELETE FROM acl WHERE resource_type = ? AND name = ? AND pattern_type = ? AND principal = ? "
                "AND host = ? AND operation = ? AND permission = ?",
                map(_to_acl_row, remove),
            )
            self._db.executemany(
                "INSERT OR IGNORE INTO acl VALUES (?, ?, ?, ?, ?, ?, ?)", map(_to_acl_row, add)
            )

    def create_topics(self, topics: Iterable[Topic]) -> None:
        with self._transaction():
            for topic in topics:
                row = (topic.name, topic.topic_id.bytes, topic.partitions)
                self._db.execute("INSERT INTO topic VALUES (?, ?, ?)", row)
                rows = [(topic.name, name, value) for name, value in topic.configs.items()]
                self._db.executemany("INSERT INTO topic_config VALUES (?, ?, ?)", rows)

    def delete_topics(self, topics: Iterable[Topic]) -> None:
        """Delete topics, and remember that their files must be removed."""
        with self._transaction():
            for topic in topics:
                row = (topic.topic_id.bytes, topic.name, topic.partitions)
                self._db.execute("INSERT OR REPLACE INTO deleted_topic VALUES (?, ?, ?)", row)
                self._db.execute("DELETE FROM topic WHERE name = ?", (topic.name,))

    def forget_deleted(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Forget deleted topics whose files are gone."""
        with self._transaction():
            rows = [(topic_id.bytes,) for topic_id in topic_ids]
            self._db.executemany("DELETE FROM deleted_topic WHERE id = ?", rows)

    def set_partitions(self, counts: Mapping[str, int]) -> None:
        with self._transaction():
            rows = [(count, name) for name, count in counts.items()]
            self._db.executemany("UPDATE topic SET partitions = ? WHERE name = ?", rows)

    def set_topic_config(self, topic: str, configs: Mapping[str, str]) -> None:
        """Replace a topic's own settings."""
        with self._transaction():
            self._db.execute("DELETE FROM topic_config WHERE topic = ?", (topic,))
            rows = [(topic, name, value) for name, value in configs.items()]
            self._db.executemany("INSERT INTO topic_config VALUES (?, ?, ?)", rows)

    def set_broker_config(self, broker: str, configs: Mapping[str, str]) -> None:
        """Replace the dynamic settings of one broker, or the default of all if the name is empty."""
        with self._transaction():
            self._db.execute("DELETE FROM broker_config WHERE broker = ?", (broker,))
            rows = [(broker, name, value) for name, value in configs.items()]
            self._db.executemany("INSERT INTO broker_config VALUES (?, ?, ?)", rows)

    def set_features(self, epoch: int, levels: Mapping[str, int]) -> None:
        """Finalize levels, as the change with this epoch."""
        with self._transaction():
            self._set("features.epoch", str(epoch))
            for name, level in levels.items():
                self._set(f"feature.{name}", str(level))

    def allocate_producer_ids(self) -> range:
        """Return a block of producer ids that is never handed out twice [MET-2]."""
        with self._transaction():
            first = int(self._get("producer.id.next") or "0")
            if first > INT64_MAX - PRODUCER_ID_BLOCK:
                raise MetadataUnusable(f"{self._path}: all producer ids are used up")
            self._set("producer.id.next", str(first + PRODUCER_ID_BLOCK))
        return range(first, first + PRODUCER_ID_BLOCK)

    def close(self) -> None:
        with closing(self._db):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _check_file(db: sqlite3.Connection, path: Path, *, may_create: bool) -> None:
    """Refuse what is not the file that it was, before anything is written to it. Raises: MetadataUnusable."""
    if not may_create and db.execute("PRAGMA user_version").fetchone() == (0,):
        raise MetadataUnusable(
            f"{path}: has no tables, and partitions lie next to it: it was emptied, or is another file."
            " Nothing was changed. Restore it from a backup"
        )
    (damage,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if damage != "ok":
        raise MetadataUnusable(f"{path}: {damage}. Nothing was changed. Restore it from a backup")


def _close_to_others(path: Path) -> None:
    """Create the file, or change its mode, so that its owner alone reads it: it has keys of passwords.

    SQLite makes its other files with the same mode; those that a killed process left keep theirs.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, _FILE_MODE))
    if os.name != "posix":
        return
    for file in (path, *(path.with_name(path.name + suffix) for suffix in _LOG_SUFFIXES)):
        if file.exists() and stat.S_IMODE(file.stat().st_mode) != _FILE_MODE:
            file.chmod(_FILE_MODE)


def _to_acl_row(acl: AclBinding) -> tuple[int, str, int, str, str, int, int]:
    pattern, entry = acl.pattern, acl.entry
    return (
        *(int(pattern.resource_type), pattern.name, int(pattern.pattern_type)),
        *(entry.principal, entry.host, int(entry.operation), int(entry.permission)),
    )


def peek_broker_configs(path: Path) -> dict[str, dict[str, str]]:
    """Return what `load_broker_configs` of a file would, before the data directory is taken.

    A file that cannot be read now, of a running broker for one, has none: opening it says what is wrong.
    """
    return _peek(path, _load_broker_configs) or {}


def peek_cluster_id(path: Path) -> str | None:
    """Return the cluster id of a file, as `peek_broker_configs` does its settings; None if there is none."""
    row = _peek(path, lambda db: db.execute("SELECT value FROM cluster WHERE name = 'cluster.id'").fetchone())
    return None if row is None else str(row[0])


def _peek(path: Path, read: Callable[[sqlite3.Connection], T]) -> T | None:
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=0)) as db:
            return read(db)
    except sqlite3.Error:
        return None


def _load_broker_configs(db: sqlite3.Connection) -> dict[str, dict[str, str]]:
    configs: dict[str, dict[str, str]] = {}
    for broker, name, value in db.execute("SELECT broker, name, value FROM broker_config"):
        configs.setdefault(broker, {})[name] = value
    return configs


def is_commit_in_doubt(exc: BaseException) -> bool:
    """Return whether a change that failed so may still be in the file, for the next process to find.

    SQLite rolls a change back in memory when the sync of the write-ahead log fails; its frames stay in the
    file, and recovery applies them.
    """
    return _get_sqlite_error_code(exc) == sqlite3.SQLITE_IOERR


def is_rolled_back(exc: BaseException) -> bool:
    """Return whether a change was rolled back for lack of space, descriptors or memory.

    A later attempt may succeed.
    """
    return _get_sqlite_error_code(exc) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM)


def _get_sqlite_error_code(exc: BaseException) -> int | None:
    code = getattr(exc, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


class _SqliteTransaction:
    """Context manager of a transaction: BEGIN, then COMMIT or, on any exception, ROLLBACK."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:  # otherwise no later transaction could begin
                self._db.execute("ROLLBACK")


class ProducerIdBlock:
    """The current block of producer ids; the caller fetches the next one when it is empty."""

    def __init__(self) -> None:
        self._block: Iterable[int] = iter(())

    def refill(self, block: range) -> None:
        self._block = iter(block)

    def claim_next(self) -> ProducerId | None:
        """Return the next id, or None when a block must be taken first."""
        for producer_id in self._block:
            return ProducerId(producer_id)
        return None
