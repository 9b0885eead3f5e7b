"""The plan in words: everything that is read and written, and what a weaker mode does not promise."""

from tallystick.client.transactions.modes import ClusterCapabilities, Mode, choose_mode
from tallystick.kernel.value import replace
from tallystick.pipeline.definition import (
    Definition,
    OnMalformed,
    OutputDefinition,
    SourceDefinition,
    TopicSink,
    Transform,
)
from tallystick.pipeline.explanation import explain

DEFINITION = Definition(
    name="p",
    checkpoint="c",
    modes=("2pc", "resume"),
    kafka={"bootstrap.servers": "k:9092"},
    sources=(
        SourceDefinition(
            name="orders",
            topics=("in",),
            schema="a INT",
            malformed=OnMalformed.DEAD_LETTER,
            dead_letter="in.bad",
        ),
    ),
    transforms=(Transform(name="large", sql="SELECT a\nFROM orders"),),
    outputs=(
        OutputDefinition(
            name="all", view="large", sinks=(TopicSink(topic="out", key="a"), TopicSink(topic="log"))
        ),
    ),
)


def said(definition: Definition, mode: object) -> dict[str, str]:
    return {title: "\n".join(lines) for title, lines in explain(definition, mode)}  # type: ignore[arg-type]


def test_everything_that_is_read_and_written_is_named() -> None:
    plan = said(DEFINITION, Mode.TWO_PHASE)
    assert "k:9092" in plan["Pipeline p"]
    assert "topic in as json" in plan["Reads"]
    assert "goes to in.bad" in plan["Reads"]
    assert plan["Views"] == "large: SELECT a FROM orders"
    assert "topic out (key a, value the row as JSON) and topic log (no key" in plan["Writes"]
    assert "p.all/" in plan["Writes"]


def test_what_the_mode_in_force_does_not_promise_is_said() -> None:
    lost = "transaction.timeout.ms"
    assert lost not in said(DEFINITION, Mode.TWO_PHASE)["Not guaranteed"]
    assert lost in said(DEFINITION, Mode.RESUME)["Not guaranteed"]
    assert lost in said(DEFINITION, None)["Not guaranteed"], "not asked: the weakest that may come"


def test_a_cluster_without_any_of_the_modes_is_told() -> None:
    only_2pc = replace(DEFINITION, modes=("2pc",))
    none = choose_mode(
        [Mode.TWO_PHASE], ClusterCapabilities(init_version=5, transaction_version=2, can_describe=True)
    )
    assert (
        "none is possible on this cluster: 2pc needs InitProducerId version 6" in said(only_2pc, none)["Mode"]
    )
