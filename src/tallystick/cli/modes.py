"""`--mode`: the guarantee that a prepared transaction may rest on, on the command line."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from tallystick.client.config import MODES
from tallystick.client.transactions.modes import Mode

ModeOption = Annotated[
    list[Mode] | None,
    typer.Option(
        "--mode",
        help="What a prepared transaction may rest on, repeatable; 2pc unless given or set. keep and resume "
        "promise less: the cluster aborts it after transaction.timeout.ms.",
    ),
]


def add_modes(config: Mapping[str, object], modes: Sequence[Mode], prepares: bool) -> dict[str, object]:
    """Add the chosen modes to the producer's settings; without any, a prepared transaction uses 2pc."""
    if modes:
        names = [name for name in MODES if Mode(name) in modes]
        two_phase = {"transaction.two.phase.commit.enable": "true" if "2pc" in names else "false"}
        return {**config, **two_phase, "tallystick.modes": ",".join(names)}
    if prepares and not config.keys() & {"tallystick.modes", "transaction.two.phase.commit.enable"}:
        return {**config, "transaction.two.phase.commit.enable": "true"}
    return dict(config)
