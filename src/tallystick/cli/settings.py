"""Values on the command line: NAME=VALUE, TOPIC:PARTITIONS, points in time, and `--mode`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

import typer

from tallystick.client.settings.config import MODES

_DIGITS_MAX: Final = 18
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_named_values(texts: Iterable[str], option: str, *, strip: bool = True) -> dict[str, str]:
    """Parse values by name, the last of each; `strip` removes blanks around a value.

    Raises: BadParameter, which names every text that is not NAME=VALUE.
    """
    pairs = parse_named_pairs(texts, option)
    return {name.strip(): value.strip() if strip else value for name, value in pairs}


def parse_named_pairs(texts: Iterable[str], option: str) -> tuple[tuple[str, str], ...]:
    """Parse names and values as given.

    Raises: as `parse_named_values`.
    """
    parts = [(text, *text.partition("=")) for text in texts]
    wrong = [text for text, name, equals, _ in parts if not name or not equals]
    if wrong:
        raise typer.BadParameter(f"{option} {', '.join(wrong)}: is not NAME=VALUE")
    return tuple((name, value) for _, name, _, value in parts)


def parse_partitions(texts: Iterable[str], option: str) -> dict[str, tuple[int, ...]]:
    """Parse TOPIC, or TOPIC:0,1, as in Kafka's tools; no numbers stand for all partitions."""
    numbers_by_topic: dict[str, tuple[int, ...]] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not topic or not all(part.isascii() and part.isdecimal() for part in parts):
            raise typer.BadParameter(f"{option} {text}: is not TOPIC or TOPIC:0,1")
        numbers_by_topic[topic] = (*numbers_by_topic.get(topic, ()), *map(int, parts))
    return numbers_by_topic


def parse_time_ms(text: str, option: str) -> int:
    """Parse milliseconds since 1970, or an ISO 8601 time, by default in UTC."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{option} {text}: is neither a time like 2026-11-21T12:00:00Z nor a number of milliseconds"
        ) from None


StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="For a lake table's storage or catalog, by its library's names. Repeatable.",
    ),
]


class ListedMode(StrEnum):
    """A mode that can be listed in `tallystick.modes`."""

    TWO_PHASE = "2pc"
    KEEP = "keep"
    RESUME = "resume"


ModeOption = Annotated[
    list[ListedMode] | None,
    typer.Option(
        "--mode",
        help="What a prepared transaction may rest on, repeatable. Unless given or set: 2pc for a new one, "
        "what fits for one to end. keep and resume alone promise less: the cluster aborts it after "
        "transaction.timeout.ms.",
    ),
]


def add_modes(config: Mapping[str, object], modes: Sequence[str], prepares: bool) -> dict[str, object]:
    """Add the chosen modes to the producer's settings; without any, a prepared transaction uses 2pc."""
    if modes:
        others = {
            name: text for name, text in config.items() if name != "transaction.two.phase.commit.enable"
        }
        return {**others, "tallystick.modes": ",".join(name for name in MODES if name in modes)}
    if prepares and not config.keys() & {"tallystick.modes", "transaction.two.phase.commit.enable"}:
        return {**config, "transaction.two.phase.commit.enable": "true"}
    return dict(config)
