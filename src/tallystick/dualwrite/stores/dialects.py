"""SQL that differs between databases, for stores with and without SQLAlchemy. Pure."""

from collections.abc import Mapping
from typing import Final

_MYSQL_NOW_MS: Final = "CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 AS SIGNED)"
NOW_MS_SQL: Final[Mapping[str, str]] = {
    # clock_timestamp(): now() is the time at which the transaction began.
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "mysql": _MYSQL_NOW_MS,
    "mariadb": _MYSQL_NOW_MS,
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}
"""Milliseconds since the Unix epoch by the database's clock, as an SQL expression for each dialect."""


IS_REPLICA_SQL: Final[Mapping[str, str]] = {
    "postgresql": "SELECT pg_is_in_recovery()",
    "mysql": "SELECT @@global.read_only",
    "mariadb": "SELECT @@global.read_only",
}
"""By dialect; true also of a MySQL or MariaDB server that may only be read for another reason."""


FIND_SCHEMA_SQL: Final[Mapping[str, str]] = {
    "postgresql": (
        "(SELECT n.nspname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
        "ON n.oid = c.relnamespace WHERE c.oid = to_regclass('{name}'))"
    ),
    "mysql": "DATABASE()",
    "mariadb": "DATABASE()",
}
"""By dialect; NULL if the table is in none."""
