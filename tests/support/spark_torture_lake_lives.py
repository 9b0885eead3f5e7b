"""The test's side of the torture with a lake table: other writers, and the checks of its files."""

from collections import Counter
from pathlib import Path
from typing import Final

from tests.support import spark_torture_lake as lake
from tests.support.spark_torture import Fault
from tests.support.spark_torture_lives import BareTorture, Told, Torture
from tests.support.spark_torture_queries import SHAPES

from tallystick.lake.opening import open_table
from tallystick.lake.sweeping import look_for_orphans, remove_orphans
from tallystick.spark import resolve_rows

_KINDS: Final = ("kill-driver", "kill-driver", "lose-answer", "rival", "optimize", "raise")


class InLake(Torture):
    """Topic and lake table in one decision, with other writers at the table."""

    lake_format = "delta"

    def __init__(self, seed: int, folder: Path, *, starts: int, rows_a_start: int) -> None:
        super().__init__(seed, folder, starts=starts, rows_a_start=rows_a_start)
        self.shape, self.surface = "stateless", "together"
        self.topics, self.starting = self.topics[:1], self.starting[:1]
        self.database_url = lake.create_table(self.lake_format, folder / "table")
        self.orphan_count = 0

    def faults(self) -> list[Fault]:
        draw = self.random
        found = [each for each in super().faults() if not each.point.startswith("append.between")]
        for _ in range(draw.randint(2, 4)):
            found.append(Fault(draw.choice(lake.LAKE_POINTS), draw.randint(1, 4), draw.choice(_KINDS)))
        task_kind = draw.choice(("raise", "kill-worker", "kill-driver"))
        return [*found, Fault(draw.choice(lake.FILE_POINTS), draw.randint(1, 4), task_kind)]

    def between(self) -> None:
        draw = self.random
        if draw.random() < 0.3:
            self.lose_commit()
        if draw.random() < 0.4:
            lake.append_as_rival(self.database_url or "")
        if draw.random() < 0.4:
            lake.optimize(self.database_url or "")
        if draw.random() < 0.4:
            self.sweep()

    def sweep(self) -> None:
        """Remove the orphans, as an operator does between two starts."""
        table = open_table(lake.locate(self.database_url or ""))
        report = look_for_orphans(table)
        self.orphan_count += len(report.orphans)
        remove_orphans(table, report)

    def rows(self) -> Counter[str]:
        return Counter(row for row in lake.read_ids(self.database_url or "") if row != lake.RIVAL)

    def run(self) -> Told:
        told = super().run()
        if not told.surprises:
            with self.broker:
                self.check_files()
        return told

    def check(self) -> None:
        super().check()
        self.compare("table", SHAPES[self.shape].expected(self.produced), self.rows())

    def check_files(self) -> None:
        """Give the prefix up, and compare the files that are there with those that the table names."""
        # Given up, the prefix has another owner: every file that no version names is an orphan, and goes.
        url = self.database_url or ""
        resolve_rows(self.prefix, self.client, url, retire=True, storage_options=lake.read_catalog(url))
        self.sweep()
        table = open_table(lake.locate(self.database_url or ""))
        stray = set(table.list_data_files()) - set(table.read_files().referenced)
        stray = {name for name in stray if name.startswith("tallystick-")}
        if stray:
            self.told.surprises.append(f"{self.folder}: files that no version names: {sorted(stray)[:3]}")
        self.compare("table after the sweep", SHAPES[self.shape].expected(self.produced), self.rows())
        self.told.struck["orphans removed"] += self.orphan_count


class BareInLake(InLake, BareTorture):
    """The same without Java."""


class InIceberg(InLake):
    """The same with an Iceberg table."""

    lake_format = "iceberg"


class BareInIceberg(BareInLake):
    """The same with an Iceberg table, without Java."""

    lake_format = "iceberg"
