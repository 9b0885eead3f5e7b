"""The test's side of the torture with a lake table: other writers, and the checks of its files."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from tests.support import spark_torture_lake as lake
from tests.support.spark_cluster import Cluster
from tests.support.spark_torture import Fault
from tests.support.spark_torture_lives import BareTorture, ClusterTorture, Told, Torture
from tests.support.spark_torture_queries import SHAPES
from tests.support.spark_torture_tables import FORMATS, RIVAL

from tallystick.lake.opening import open_table
from tallystick.lake.sweeping import look_for_orphans, remove_orphans
from tallystick.spark import resolve_rows

MakeTorture = Callable[..., Torture]
GAP: Final = "append.between"
"""The point between two steps of a decision in a topic."""

_KINDS: Final = ("kill-driver", "kill-driver", "lose-answer", "rival", "optimize", "raise")


class InLake(Torture):
    """Topic and lake table in one decision, with other writers at the table."""

    def __init__(
        self, seed: int, folder: Path, *, starts: int, rows_a_start: int, table: str = "delta"
    ) -> None:
        """Create a seed with an empty table; `table` is one of `FORMATS`."""
        super().__init__(seed, folder, starts=starts, rows_a_start=rows_a_start)
        self.shape, self.surface = "stateless", "together"
        self.topics, self.starting = self.topics[:1], self.starting[:1]
        self.url = FORMATS[table].create(folder / "table")
        self.database_url = self.url
        self.orphan_count = 0

    def faults(self) -> list[Fault]:
        draw = self.random
        found = [each for each in super().faults() if each.point != GAP]
        for _ in range(draw.randint(2, 4)):
            found.append(Fault(draw.choice(lake.LAKE_POINTS), draw.randint(1, 4), draw.choice(_KINDS)))
        task_kind = draw.choice(("raise", "kill-worker", "kill-driver"))
        return [*found, Fault(draw.choice(lake.FILE_POINTS), draw.randint(1, 4), task_kind)]

    def between(self) -> None:
        draw = self.random
        if draw.random() < 0.3:
            self.lose_commit()
        if draw.random() < 0.4:
            lake.append_as_rival(self.url)
        if draw.random() < 0.4:
            lake.optimize(self.url)
        if draw.random() < 0.4:
            self.sweep()

    def sweep(self) -> None:
        """Remove the orphans, as an operator does between two starts."""
        table = open_table(lake.locate(self.url))
        report = look_for_orphans(table)
        self.orphan_count += len(report.orphans)
        remove_orphans(table, report)

    def rows(self) -> Counter[str]:
        return Counter(row for row in lake.read_ids(self.url) if row != RIVAL)

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
        options = dict(lake.locate(self.url).storage_options)
        resolve_rows(self.prefix, self.client, self.url, retire=True, storage_options=options)
        self.sweep()
        table = open_table(lake.locate(self.url))
        stray = set(table.list_data_files()) - set(table.read_files().referenced)
        stray = {name for name in stray if name.startswith("tallystick-")}
        if stray:
            self.told.surprises.append(f"{self.folder}: files that no version names: {sorted(stray)[:3]}")
        self.compare("table after the sweep", SHAPES[self.shape].expected(self.produced), self.rows())
        self.told.struck["orphans removed"] += self.orphan_count


class BareInLake(InLake, BareTorture):
    """The same without Java."""


class ClusterInLake(ClusterTorture, InLake):
    """The same on a Spark master and two workers, which share the table's folder with the driver."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        cluster: Cluster,
        *,
        starts: int,
        rows_a_start: int,
        table: str = "delta",
    ) -> None:
        InLake.__init__(self, seed, folder, starts=starts, rows_a_start=rows_a_start, table=table)
        self.run_on(cluster)

    def zombies(self) -> list[Fault]:
        # A table's decision is one commit. At a point within it, zombies would not be released.
        found = super().zombies()
        return [replace(each, point="append.before") if each.point == GAP else each for each in found]


ON_ONE_HOST: Final[dict[str, MakeTorture]] = {
    "topic": Torture,
    **{name: partial(InLake, table=name) for name in FORMATS},
}
WITHOUT_JAVA: Final[dict[str, MakeTorture]] = {
    "topic": BareTorture,
    **{name: partial(BareInLake, table=name) for name in FORMATS},
}
ON_A_CLUSTER: Final[dict[str, MakeTorture]] = {
    "topic": ClusterTorture,
    **{name: partial(ClusterInLake, table=name) for name in FORMATS},
}
"""What the torture writes to: a topic alone, or a topic and a table of this format in one decision."""
