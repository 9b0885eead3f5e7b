"""What a database may be set up to lose, and which of that a user takes upon themselves [DW-8]. Pure.

A storage that keeps the log elsewhere may show a setting that would lose commits on an ordinary disk: hosted
PostgreSQL with `fsync=off`, say. Who knows that allows this one setting by its name, and the others are still
looked at. That every statement commits by itself is no such risk: it breaks the recipe on any storage.
"""

from collections.abc import Collection
from typing import Final, Literal, TypeAlias, get_args

from tallystick.dualwrite.errors import UnsafeStore
from tallystick.kernel.value import frozen

Risk: TypeAlias = Literal[
    "fsync",
    "synchronous_commit",
    "synchronous_standby_names",
    "innodb_flush_log_at_trx_commit",
    "sync_binlog",
    "synchronous",
    "journal_mode",
]
"""A database's own name of a setting: three of PostgreSQL, two of MySQL and MariaDB, two of SQLite."""

RISKS: Final[tuple[Risk, ...]] = get_args(Risk)
AllowUnsafe: TypeAlias = bool | Collection[Risk]


@frozen
class Allowed:
    """What a store does not mind. With `everything` it does not even ask."""

    risks: frozenset[str]
    everything: bool = False

    def need(self, risk: Risk, found: str, *, safe: bool, wanted: str, called: str = "") -> None:
        """Raises: UnsafeStore if a setting is not safe, and is not allowed to be otherwise."""
        if not (safe or self.covers(risk)):
            raise UnsafeStore(called or risk, found, wanted, risk)

    def covers(self, risk: Risk) -> bool:
        return self.everything or risk in self.risks


STRICT: Final = Allowed(frozenset())


def allowed_of(allow: AllowUnsafe) -> Allowed:
    """What `allow_unsafe_durability` says. Raises: ValueError for names that are none."""
    if isinstance(allow, bool):
        return Allowed(frozenset(), everything=allow)
    names = [allow] if isinstance(allow, str) else list(allow)
    unknown = [each for each in names if each not in RISKS]
    if unknown or isinstance(allow, str):
        told = ", ".join(map(repr, unknown or names))
        raise ValueError(
            f"allow_unsafe_durability: {told}: it takes True, or a set of settings out of {', '.join(RISKS)}"
        )
    return Allowed(frozenset(names))


def judge_postgresql(synchronous_commit: str, allowed: Allowed) -> None:
    """Raises: UnsafeStore. The others (local, remote_write, remote_apply, on) flush to the own disk first."""
    allowed.need("synchronous_commit", synchronous_commit, safe=synchronous_commit != "off", wanted="on")


def judge_sqlite(synchronous: str, journal: str, allowed: Allowed) -> None:
    """Raises: UnsafeStore. Args: what the two PRAGMAs answered."""
    full, on_disk = synchronous in ("2", "3"), journal not in ("off", "memory")
    wanted = "FULL (2) or EXTRA (3)"
    allowed.need("synchronous", synchronous, safe=full, wanted=wanted, called="PRAGMA synchronous")
    wanted = "a journal on the disk"
    allowed.need("journal_mode", journal, safe=on_disk, wanted=wanted, called="PRAGMA journal_mode")
