"""The findings of the crash matrix as a table; `note` stores them where TALLYSTICK_CRASH_TABLE says.

python tests/support/crash_table.py NOTES     # prints the tables
"""

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Struck:
    """A process that was killed, and the recovery by the next one.

    during  what it was doing
    where   before or after which step
    found   the finding; and `did`, what was done about it
    """

    during: str
    where: str
    found: str
    did: str
    store: str
    mode: str
    cluster: str


def note(strikes: Iterable[Struck]) -> None:
    """Store the strikes, if the run is to be published."""
    if path := os.environ.get("TALLYSTICK_CRASH_TABLE"):
        with Path(path).open("a") as notes:
            notes.writelines(json.dumps(asdict(each)) + "\n" for each in strikes)


# The order of steps in a life, and of the table's rows.
STEPS = (
    "claim",
    "describe cluster",
    "describe features",
    "describe",
    "begin settling",
    "settle",
    "commit settled",
    "init",
    "check owner",
    "complete",
    "begin database",
    "begin",
    "write rows",
    "send",
    "flush",
    "prepare",
    "record",
    "create data file",
    "finish data file",
    "write log entry",
    "sync log entry",
    "commit database",
    "write log entry with rows",
    "sync log entry with rows",
    "commit",
    "close producer",
    "close admin",
)


def of_steps(strikes: list[Struck]) -> str:
    """Return the table of where lives were killed and what the next recoveries found, over all cells."""
    found = defaultdict[tuple[str, str, str], Counter[str]](Counter)
    for each in strikes:
        when, _, step = each.where.partition(" ")
        found[each.during, step, when][f"{each.found}, {each.did}"] += 1
    lines = [
        "| killed during | at | recovery finds, killed before it | killed after it |",
        "|---|---|---|---|",
    ]
    order = {name: at for at, name in enumerate(STEPS)}
    at = sorted({(during, step) for during, step, _ in found}, key=lambda one: (one[0], order[one[1]]))
    for during, step in at:
        cells = (found[during, step, when] for when in ("before", "after"))
        said = ("; ".join(f"{what} ({times})" for what, times in cell.most_common()) for cell in cells)
        lines.append(f"| {during} | {step} | {' | '.join(said)} |")
    return "\n".join(lines)


def of_cells(strikes: list[Struck]) -> str:
    """Return the table of how often a process was killed in each cell."""
    columns = sorted({(each.mode, each.cluster) for each in strikes})
    counts = Counter((each.store, each.mode, each.cluster) for each in strikes)
    lines = ["| store | " + " | ".join(f"{mode}, {cluster}" for mode, cluster in columns) + " |"]
    lines.append("|---" * (1 + len(columns)) + "|")
    for store in sorted({each.store for each in strikes}):
        times = [counts[store, *column] for column in columns]
        lines.append(f"| {store} | " + " | ".join(f"{n}" if n else "" for n in times) + " |")
    return "\n".join(lines)


def main(path: str) -> None:
    strikes = [Struck(**json.loads(line)) for line in Path(path).read_text().splitlines()]
    print(f"{len(strikes)} kills; after each of them both sides agreed.\n")
    print(of_cells(strikes), of_steps(strikes), sep="\n\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
