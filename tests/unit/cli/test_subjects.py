"""Names are positional, and the options of Kafka's tools stay as synonyms."""

from typing import Any

import pytest
import typer

from tallystick.cli.main import main
from tallystick.cli.subjects import choose_name, merge_names


def make_context() -> Any:
    app = typer.Typer()

    @app.command()
    def delete() -> None: ...

    return typer.main.get_command(app).make_context("tallystick", [], resilient_parsing=True)


def test_names_and_options_are_united_in_order() -> None:
    assert merge_names(make_context(), ["b", "a"], ["c", "a"], "TOPIC") == ["b", "a", "c"]
    assert merge_names(make_context(), None, ["c"], "TOPIC") == ["c"]


@pytest.mark.parametrize(("name", "option"), [("a", None), (None, "a")])
def test_one_name_is_either(name: str | None, option: str | None) -> None:
    assert choose_name(make_context(), name, option, "GROUP") == "a"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("topics", "create"), "give at least one TOPIC: tallystick topics create TOPIC..."),
        (("topics", "delete", "--yes"), "give at least one TOPIC: tallystick topics delete TOPIC..."),
        (
            ("topics", "delete-records", "--before-offset", "1"),
            "give the TOPIC[:P,P]: tallystick topics delete-records TOPIC[:P,P] --before-offset OFFSET",
        ),
        (("groups", "delete"), "tallystick groups delete GROUP..."),
        (("groups", "reset-offsets", "a", "--group", "a"), "GROUP is given twice, as 'a' and as 'a'"),
        (("transactions", "describe"), "tallystick transactions describe ID..."),
        (("transactions", "force-terminate"), "tallystick transactions force-terminate ID"),
        (("users", "create"), "tallystick users create USER..."),
        (("users", "delete"), "tallystick users delete USER..."),
        (("features", "upgrade"), "tallystick features upgrade NAME=LEVEL..."),
        (("configs", "describe"), "tallystick configs describe TYPE NAME"),
        (("configs", "describe", "orders"), "must be one of topics, brokers, groups"),
        (("configs", "alter", "topics"), "tallystick configs alter topics NAME"),
        (("produce", "a", "--topic", "b"), "TOPIC is given twice, as 'a' and as 'b'"),
        (("produce",), "give the TOPIC: tallystick produce TOPIC"),
        (("consume",), "give at least one TOPIC: tallystick consume TOPIC..."),
    ],
    ids=" ".join,
)
def test_a_missing_name_is_shown_as_it_is_written(
    words: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a cluster too: what is wrong with the call comes first."""
    assert main(list(words)) == 2
    assert problem in capsys.readouterr().err
