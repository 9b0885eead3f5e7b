"""What a start does with each damaged file of a data directory: the table of docs/operate/start-report.md."""

import logging
import shutil
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest
from tests.support.damaged_directory import (
    COMMITTED_OFFSET,
    Damage,
    broker_on,
    cut,
    damage,
    empty,
    find,
    flip,
    foreign,
    make_directories,
    remove,
)
from tests.support.memory_broker import on_a_loop
from tests.unit.broker.test_damaged_coordinators import fetch_offset, keep

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import TallystickError

pytestmark = pytest.mark.slow

PAGE: Final = Path(__file__).parents[3] / "docs" / "operate" / "start-report.md"
HEADING: Final = "| file | cut | emptied | one bit flipped | another file's bytes | missing |"
DAMAGES: Final[tuple[Damage, ...]] = (cut, empty, flip, foreign, remove)
# The files of `make_directories` for the names of the table's rows.
FILES: Final = MappingProxyType(
    {
        "last `.log` of a partition": "t-0/00000000000000000004.log",
        "`.log` of `__transaction_state`": "__transaction_state-0/00000000000000000000.log",
        "`.log` of `__consumer_offsets`": "__consumer_offsets-0/00000000000000000000.log",
        "`.index`": "__transaction_state-0/00000000000000000000.index",
        "`.timeindex`": "t-0/00000000000000000002.timeindex",
        "`.txnindex`": "t-0/00000000000000000002.txnindex",
        "newest `.snapshot` of a clean stop": "t-0/00000000000000000006.snapshot",
        "older `.snapshot`": "t-0/00000000000000000002.snapshot",
        "`leader-epoch-checkpoint`": "t-0/leader-epoch-checkpoint",
        "`partition.metadata`": "t-0/partition.metadata",
        "`meta.properties`": "meta.properties",
        "`recovery-point-offset-checkpoint`": "recovery-point-offset-checkpoint",
        "`log-start-offset-checkpoint`": "log-start-offset-checkpoint",
        "`cleaner-offset-checkpoint`": "cleaner-offset-checkpoint",
        "`.kafka_cleanshutdown`": ".kafka_cleanshutdown",
        "`.reserve`": ".reserve",
        "`.lock`": ".lock",
        "`metadata.sqlite`": "metadata.sqlite",
        "`metadata.sqlite-wal`": "metadata.sqlite-wal",
    }
)


def read_table() -> dict[str, list[str]]:
    """Return the cells of each row: `silent`, `reported`, `not served`, `refused`; `a / b` after a kill."""
    lines = PAGE.read_text("utf-8").splitlines()
    rows = {}
    for line in lines[lines.index(HEADING) + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = cells
    return rows


async def start(directory: Path, name: str, caplog: pytest.LogCaptureFixture) -> str:
    """Start a broker on a directory with one damaged file; return what the start made of it."""
    caplog.clear()
    try:
        async with broker_on(directory) as desk:
            end = find(desk, "t").log.log_end_offset, find(desk, "t").log.reader.last_stable_offset
            (keep_code, ongoing), (fetch_code, offsets) = await keep(desk), await fetch_offset(desk)
    except TallystickError as exc:
        text = str(exc)
        names_file = any(part in text for part in name.split("/"))
        return "refused" if names_file and ("estore" in text or "remove" in text) else text
    assert not [each for each in caplog.records if each.exc_info]
    assert end == (6, 5)
    if ErrorCode.COORDINATOR_NOT_AVAILABLE in (keep_code, fetch_code):
        assert name in caplog.text
        return "not served"
    assert (keep_code, fetch_code, offsets) == (0, 0, [COMMITTED_OFFSET])
    assert ongoing >= 0, "nothing is in doubt any more"
    texts = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return (
        "reported" if any(name in text or "last stop was not clean" in text for text in texts) else "silent"
    )


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made: dict[str, Path] = {}

    @on_a_loop
    async def make() -> None:
        made.update(await make_directories(tmp_path_factory.mktemp("whole")))

    make()
    return made


def test_the_table_has_every_file(directories: dict[str, Path]) -> None:
    assert list(read_table()) == list(FILES)
    for name in FILES.values():
        assert any((directory / name).exists() for directory in directories.values()), name


@pytest.mark.gate(1)
@pytest.mark.parametrize("row", FILES)
@on_a_loop
async def test_a_start_does_what_the_table_says(
    row: str, directories: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells = []
    for number, how in enumerate(DAMAGES):
        answers = []
        for stop in ("clean", "killed"):
            if not (directories[stop] / FILES[row]).exists():
                continue
            directory = tmp_path / f"{stop}-{number}"
            shutil.copytree(directories[stop], directory)
            damage(directory / FILES[row], how)
            answer = await start(directory, FILES[row], caplog)
            is_ever = stop == "killed" and "scanned from" in caplog.text and answer == "reported"
            texts = [each.getMessage() for each in caplog.records if FILES[row] in each.getMessage()]
            answers.append("silent" if is_ever and not texts else answer)
        cells.append(" / ".join(dict.fromkeys(answers)))
    assert cells == read_table()[row]
