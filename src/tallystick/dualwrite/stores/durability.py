"""Durability settings of databases, and the unsafe ones that a user accepts [DW-8]. Pure.

Storage that keeps the log elsewhere may show a setting that would lose commits on an ordinary disk, such as
hosted PostgreSQL with `fsync=off`. A user who knows this allows that one setting by its name, and the others
are still checked. Autocommit of every statement cannot be allowed: it breaks the recipe on any storage.
"""

from collections.abc import Collection
from typing import Final, Literal, TypeAlias, get_args

from tallystick.dualwrite.errors import UnsafeDurability
from tallystick.kernel.value import Value

DurabilitySetting: TypeAlias = Literal[
    "fsync",
    "synchronous_commit",
    "synchronous_standby_names",
    "innodb_flush_log_at_trx_commit",
    "sync_binlog",
    "synchronous",
    "journal_mode",
]
"""The database's own name of a setting: three of PostgreSQL, two of MySQL and MariaDB, two of SQLite."""

DURABILITY_SETTINGS: Final[tuple[DurabilitySetting, ...]] = get_args(DurabilitySetting)
AllowUnsafe: TypeAlias = bool | Collection[DurabilitySetting]


class AllowedRisks(Value):
    """The unsafe settings that a store accepts. With `allows_all` it does not query them at all."""

    risks: frozenset[str]
    allows_all: bool = False

    def require(
        self, risk: DurabilitySetting, actual: str, *, safe: bool, required: str, label: str = ""
    ) -> None:
        """Raise UnsafeDurability if a setting is neither safe nor allowed."""
        if not (safe or self.covers(risk)):
            raise UnsafeDurability(label or risk, actual, required, risk)

    def covers(self, risk: DurabilitySetting) -> bool:
        return self.allows_all or risk in self.risks


STRICT: Final = AllowedRisks(frozenset())


def parse_allowed(allow: AllowUnsafe) -> AllowedRisks:
    """Parse `allow_unsafe_durability`. Raises: ValueError for unknown names."""
    if isinstance(allow, bool):
        return AllowedRisks(frozenset(), allows_all=allow)
    names = [allow] if isinstance(allow, str) else list(allow)
    unknown = [each for each in names if each not in DURABILITY_SETTINGS]
    if unknown or isinstance(allow, str):
        rejected = ", ".join(map(repr, unknown or names))
        raise ValueError(
            f"allow_unsafe_durability: {rejected}: it takes True, or a set of settings out of "
            f"{', '.join(DURABILITY_SETTINGS)}"
        )
    return AllowedRisks(frozenset(names))


def check_postgresql(synchronous_commit: str, allowed: AllowedRisks) -> None:
    """Raise UnsafeDurability for `off`; every other value flushes to the local disk first."""
    allowed.require("synchronous_commit", synchronous_commit, safe=synchronous_commit != "off", required="on")


def check_sqlite(synchronous: str, journal: str, allowed: AllowedRisks) -> None:
    """Raise UnsafeDurability for unsafe values of `PRAGMA synchronous` and `PRAGMA journal_mode`."""
    full, on_disk = synchronous in ("2", "3"), journal not in ("off", "memory")
    required = "FULL (2) or EXTRA (3)"
    allowed.require("synchronous", synchronous, safe=full, required=required, label="PRAGMA synchronous")
    required = "a journal on the disk"
    allowed.require("journal_mode", journal, safe=on_disk, required=required, label="PRAGMA journal_mode")
