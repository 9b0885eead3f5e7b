"""The units in which logs are read and written, drawn so small that test data is longer than each of them.

In the shipped sizes hardly any test data crosses them, and what happens at a unit's edge would not be tried.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final, NamedTuple

from tallystick.broker.group import logic
from tallystick.broker.txn import loader, start_comparison
from tallystick.storage.compaction import cleaner
from tallystick.storage.log import loader as log_loader
from tallystick.storage.log import reader as log_reader
from tallystick.storage.segments import segment_files, segment_scan


class Unit(NamedTuple):
    """A constant and the sizes drawn for it: from the smallest that works to that of a few small batches."""

    modules: tuple[object, ...]
    name: str
    low: int
    high: int


UNITS: Final = (
    Unit((segment_scan, log_loader), "SCAN_BYTES", 62, 400),
    Unit((segment_files,), "_SCAN_BYTES", 61, 400),
    Unit((cleaner,), "_WRITE_BYTES", 1, 400),
    Unit((log_reader,), "_READ_POSITIONS_MAX", 1, 3),
    Unit((log_reader,), "_EMPTIED_PASSED_MAX", 1, 3),
    Unit((start_comparison,), "SCAN_BYTES", 1, 400),
    Unit((loader,), "REPLAY_CHUNK_BYTES", 1, 400),
    Unit((logic,), "REPLAY_CHUNK_BYTES", 1, 400),
)


@contextmanager
def small_units(random: Random) -> Iterator[None]:
    """Draw every unit small until the block ends."""
    originals = [(module, unit.name, vars(module)[unit.name]) for unit in UNITS for module in unit.modules]
    try:
        for unit in UNITS:
            size = random.randint(unit.low, unit.high)
            for module in unit.modules:
                setattr(module, unit.name, size)
        yield
    finally:
        for module, name, size in originals:
            setattr(module, name, size)
