"""Expressions for the schema in which a database finds a table that is named without one."""

from collections.abc import Mapping
from typing import Final

FIND_SCHEMA_SQL: Final[Mapping[str, str]] = {
    "postgresql": (
        "(SELECT n.nspname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
        "ON n.oid = c.relnamespace WHERE c.oid = to_regclass('{name}'))"
    ),
    "mysql": "DATABASE()",
    "mariadb": "DATABASE()",
}
"""By dialect; NULL if the table is in none."""
