"""Streaming queries under faults: drivers, workers and the broker are killed, and every row is there once.

Each seed is one query that lives through several drivers; `tests/support/spark_torture*.py` say what is
drawn. A driver is a process with a Java of its own, so a start takes seconds: one seed here, and many in
`make crash`. The bare form asks the same sink for the same things without Java: more seeds in the same time,
and attempts that race, which Spark's local mode has none of.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.effort import LONG, TORTURE_SEEDS
from tests.support.spark_torture_lake_lives import ON_ONE_HOST, WITHOUT_JAVA
from tests.support.spark_torture_lives import BareSecureTorture, SecureTorture, Told

KNOWN = Path(__file__).with_name("spark_seeds.txt")
SEEDS = range(TORTURE_SEEDS) if LONG else range(1)
STARTS = 9 if LONG else 3
ROWS_A_START = 3_500 if LONG else 750
BARE_SEEDS = range(3 * TORTURE_SEEDS) if LONG else range(2)
BARE_ROWS_A_START = 8_000 if LONG else 1_500

pytestmark = [pytest.mark.gate(0), pytest.mark.server, pytest.mark.timeout(300 * STARTS)]


def known_seeds() -> list[int]:
    lines = KNOWN.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")] if LONG else []


@pytest.fixture(scope="module")
def totals() -> Iterator[dict[str, Told]]:
    """Of all seeds, by what they ran on; printed at the end of the long form."""
    told = defaultdict[str, Told](Told)
    yield told
    for name, each in told.items() if LONG else ():
        print(f"\n{name}: {each.shown()}", file=sys.__stdout__)


@pytest.mark.parametrize("where", ON_ONE_HOST if LONG else ["topic"])
@pytest.mark.parametrize("seed", [*known_seeds(), *SEEDS])
def test_every_row_is_there_once(seed: int, where: str, tmp_path: Path, totals: dict[str, Told]) -> None:
    """[SPK-20] [SPK-21] [SPK-22] [SPK-23] [LAK-1] Read by librdkafka and the table's own library."""
    made = ON_ONE_HOST[where](seed, tmp_path, starts=STARTS, rows_a_start=ROWS_A_START)
    check(made.run(), totals[f"Spark, {where}"])


@pytest.mark.parametrize("where", WITHOUT_JAVA if LONG else ["topic"])
@pytest.mark.parametrize("seed", BARE_SEEDS)
def test_every_row_is_there_once_without_java(
    seed: int, where: str, tmp_path: Path, totals: dict[str, Told]
) -> None:
    """[SPK-20] [SPK-21] [SPK-22] [SPK-23] [LAK-1] [LAK-2] [LAK-3] [LAK-4]"""
    made = WITHOUT_JAVA[where](seed, tmp_path, starts=STARTS, rows_a_start=BARE_ROWS_A_START)
    check(made.run(), totals[f"without Java, {where}"])


@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_is_there_once_over_sasl_ssl(seed: int, tmp_path: Path, totals: dict[str, Told]) -> None:
    """[SPK-20] [SPK-21] [SPK-22] [SPK-23] With logins and ACLs; no file has the password."""
    made = SecureTorture(seed, tmp_path, starts=3, rows_a_start=ROWS_A_START)
    check(made.run(), totals["Spark, over SASL_SSL"])


@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_is_there_once_over_sasl_ssl_without_java(
    seed: int, tmp_path: Path, totals: dict[str, Told]
) -> None:
    """[SPK-20] [SPK-21] [SPK-22] [SPK-23]"""
    made = BareSecureTorture(seed, tmp_path, starts=STARTS, rows_a_start=BARE_ROWS_A_START)
    check(made.run(), totals["without Java, over SASL_SSL"])


def check(told: Told, total: Told) -> None:
    total.add(told)
    assert told.surprises == []
    assert (told.missing, told.duplicates, told.strangers) == (0, 0, 0)
    assert told.left_open == []
    assert told.struck, "something happened to it"
