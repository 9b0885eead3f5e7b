"""Names around a lake table: its URL, the key of a writer in its log, and its data files. Pure.

    delta:/lake/delays                    the URL of a table: its format, and its place
    delta:sales.delays                    the same by its name in Spark's catalog, which `look_up_table` asks
    iceberg:lake.flights.delays           the same of Iceberg: its catalog, its namespace, and its name
    tallystick:pipeline.flights/database  the application id of a key in Delta's log, in Iceberg its tag: of a
                                          query's prefix
    tallystick:dual-write:payments-1      and of a dual writer's transactional id
    tallystick-<table>-<key>-<owner>-<attempt>-<number>.parquet
                                          a data file: digests of its table's identity, of the key and of the
                                          owner that wrote it, a random name for the attempt, and a number
                                          within that attempt; version 1 wrote names without a table

Table and owner in a file's name are what tells an orphan from a file of another table, or of a live attempt:
see `orphans`.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from tallystick.kernel.ids import TABLE_FORMATS
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value

_CATALOG_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}", re.ASCII)
# Spark's catalog writes a place on DBFS as dbfs:/user/hive/warehouse/delays.
_SCHEME: Final = re.compile(r"[A-Za-z][\w+.-]*:/", re.ASCII)
_APPLICATION_PREFIX: Final = "tallystick:"
_WRITER_PREFIX: Final = "dual-write:"
_ICEBERG_PARTS_MIN: Final = 3
_KEY_DIGITS: Final = 16
_OWNER_DIGITS: Final = 12
_TABLE_DIGITS: Final = 12
_DATA_FILE: Final = re.compile(
    rf"tallystick-(?:([0-9a-f]{{{_TABLE_DIGITS}}})-)?([0-9a-f]{{{_KEY_DIGITS}}})-"
    rf"([0-9a-f]{{{_OWNER_DIGITS}}})-([0-9a-f]+)-([0-9]+)\.parquet"
)
OBJECT_STORES: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure")
"""Schemes of the object stores that delta-rs and obstore both have."""

# Under these, "create if absent" of a store is switched off: then two drivers may both commit.
_UNSAFE_OPTIONS: Final = ("aws_s3_allow_unsafe_rename", "allow_unsafe_rename", "mount_allow_unsafe_rename")
_CONDITIONAL_PUT_OPTIONS: Final = ("aws_conditional_put", "conditional_put")
# With it, others agree in a table of DynamoDB and create entries without a condition.
_LOCKING_OPTIONS: Final = ("aws_s3_locking_provider",)
_LOCKED_STORES: Final = ("s3://", "s3a://")


class StorageOptions(tuple[tuple[str, str], ...]):
    """Options of a table's storage: pairs of name and text, printed without texts, which may be secrets."""

    __slots__ = ()

    @classmethod
    def build(cls, options: Mapping[str, str] | None) -> "StorageOptions":
        return cls(sorted((options or {}).items()))

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(name for name, _ in self)})"


NO_OPTIONS: Final = StorageOptions()


class TableUrl(Value):
    """The URL of a lake table: `format`, and `place`, a path, the URL of an object store, or its names."""

    format: str
    place: str

    @property
    def folder(self) -> str:
        """The place as a path, if it is one."""
        return self.place.removeprefix("file://")

    @property
    def is_path(self) -> bool:
        """True if the place is a path, which may be relative."""
        return self.format == "delta" and not has_scheme(self.place) and not self.is_catalog_name

    @property
    def is_catalog_name(self) -> bool:
        """True if the place is a name in Spark's catalog: schema and table, after a catalog or without."""
        return self.format == "delta" and _CATALOG_NAME.fullmatch(self.place) is not None

    @property
    def is_in_object_store(self) -> bool:
        return self.format == "delta" and self.place.partition("://")[0] in OBJECT_STORES

    def __str__(self) -> str:
        return f"{self.format}:{self.place}"


def has_scheme(place: str) -> bool:
    """Return whether a place is a URI, such as dbfs:/a, file:/a or s3://a, and not a path."""
    return _SCHEME.match(place) is not None


def is_catalog_url(text: str) -> bool:
    """Return whether a table is named as in Spark's catalog, like `delta:sales.delays`."""
    kind, _, place = text.partition(":")
    return TableUrl(kind, place).is_catalog_name


def parse_table_url(text: str) -> TableUrl:
    """Parse the URL of a lake table. Raises: BadConfig."""
    kind, _, place = text.partition(":")
    if kind not in TABLE_FORMATS or not place:
        raise BadConfig(f"table {text}: is not the URL of a lake table, like delta:/lake/delays")
    parts = place.split(".")
    if kind == "iceberg" and (len(parts) < _ICEBERG_PARTS_MIN or not all(parts) or "/" in place):
        raise BadConfig(
            f"table {text}: an Iceberg table is named by its catalog, namespace and name, like "
            "iceberg:lake.flights.delays"
        )
    return TableUrl(kind, place)


def find_url_problem(text: str) -> str | None:
    """Return why a table cannot be written at this URL; None if it can, as far as the URL tells."""
    try:
        url = parse_table_url(text)
    except BadConfig as exc:
        return str(exc)
    if url.is_catalog_name:
        return (
            f"table {text}: is a name in Spark's catalog, which foreach_batch and pipelines look up, and "
            f"nothing else. Give the table's path; a relative one is delta:./{url.place}"
        )
    if has_scheme(url.folder) and not url.is_in_object_store:
        return (
            f"table {text}: must be in a folder that all its writers share, or in an object store "
            f"({', '.join(f'{each}://' for each in OBJECT_STORES)})"
        )
    return None


def find_unsafe_options(url: TableUrl, storage_options: Mapping[str, str]) -> list[str]:
    """Return the options under which the storage may overwrite a log entry that another writer has committed.

    The fence of a driver is the storage's "create only if absent": without it there is none.
    """
    options = {name.lower(): text.lower() for name, text in storage_options.items()}
    unsafe = [name for name in _UNSAFE_OPTIONS if options.get(name, "false") not in ("false", "0", "no")]
    unsafe += [name for name in _CONDITIONAL_PUT_OPTIONS if options.get(name) == "disabled"]
    locks = _LOCKING_OPTIONS if url.place.startswith(_LOCKED_STORES) else ()
    return unsafe + [name for name in locks if options.get(name)]


def format_application_id(key: str) -> str:
    """Return the application id of a key in the table's log."""
    return _APPLICATION_PREFIX + key


def parse_application_id(text: str) -> str | None:
    """Return the key of an application id of ours; None for that of another application."""
    return text.removeprefix(_APPLICATION_PREFIX) if text.startswith(_APPLICATION_PREFIX) else None


def format_writer_key(transactional_id: str) -> str:
    """Return the key of a dual writer's id. A prefix of a query has no colon, so that none is equal to it."""
    return _WRITER_PREFIX + transactional_id


def parse_writer_key(key: str) -> str | None:
    """Return the transactional id of a dual writer's key; None for another key."""
    return key.removeprefix(_WRITER_PREFIX) if key.startswith(_WRITER_PREFIX) else None


class DataFileName(Value):
    """The parsed name of a data file of ours; the names of version 1 have no `table_digest`."""

    table_digest: str | None
    key_digest: str
    owner_digest: str
    attempt: str


def digest_table(identity: str) -> str:
    """Return the digest of a table's identity, as data files have it."""
    return sha256(identity.encode()).hexdigest()[:_TABLE_DIGITS]


def digest_key(key: str) -> str:
    """Return the digest of a key, as data files have it."""
    return sha256(key.encode()).hexdigest()[:_KEY_DIGITS]


def digest_owner(owner: str) -> str:
    """Return the digest of an owner, as data files have it."""
    return sha256(owner.encode()).hexdigest()[:_OWNER_DIGITS]


def format_data_file_name(table: str, key: str, owner: str, attempt: str, number: int) -> str:
    """Return the name of a data file.

    Args:
        table: the identity of its table, which a renamed table keeps.
        attempt: hexadecimal digits that no other attempt has.
    """
    digests = f"{digest_table(table)}-{digest_key(key)}-{digest_owner(owner)}"
    return f"tallystick-{digests}-{attempt}-{number}.parquet"


def parse_data_file_name(name: str) -> DataFileName | None:
    """Parse the name of a data file; None for a file that another writer named."""
    match = _DATA_FILE.fullmatch(name)
    return None if match is None else DataFileName(*match.groups()[:-1])
