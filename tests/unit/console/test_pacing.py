"""The console is never the load that it shows."""

from hypothesis import given
from hypothesis import strategies as st

from tallystick.console.collect.config import (
    AWAY_REST_MS_MAX,
    PARTIAL_REST_MS_MAX,
    REST_FACTOR,
    Pace,
    Paces,
    compute_interval_ms,
)

times = st.integers(0, 10_000_000)


@given(configured=times, took=times, hurried=st.booleans())
def test_a_whole_reading_never_takes_more_than_a_twentieth_of_the_time(
    configured: int, took: int, hurried: bool
) -> None:
    assert compute_interval_ms(configured, took, is_hurried=hurried) >= REST_FACTOR * took


def test_the_parts_of_a_console_rest_for_as_long() -> None:
    """Only the consoles of tests rest less, which share a machine with nothing that counts."""
    paces = Paces()
    parts: list[Pace] = [getattr(paces, name) for name in Paces.__struct_fields__]
    assert {each.rest_factor for each in parts} == {REST_FACTOR}


limits = st.sampled_from([None, AWAY_REST_MS_MAX, PARTIAL_REST_MS_MAX])


@given(configured=times, took=times, limit=limits)
def test_nothing_is_read_more_often_than_configured(configured: int, took: int, limit: int | None) -> None:
    assert compute_interval_ms(configured, took, rest_max_ms=limit) >= configured


def test_what_was_away_is_looked_for_again_soon() -> None:
    """A time limit of ten seconds must not make it two hundred until the next look."""
    assert compute_interval_ms(5_000, 10_000, rest_max_ms=AWAY_REST_MS_MAX) == AWAY_REST_MS_MAX


def test_a_quick_part_is_read_when_it_was_configured() -> None:
    assert compute_interval_ms(2_000, 15) == 2_000


def test_who_waits_for_a_reading_waits_for_its_load_alone() -> None:
    assert compute_interval_ms(60_000, 15, is_hurried=True) == 300
