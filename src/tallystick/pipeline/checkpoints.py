"""Ownership check of checkpoints: continuing one under another prefix would repeat a decided batch [PIP-2].

Decisions are kept under the pipeline's name and offsets in its checkpoint; neither is meaningful without the
other. In a checkpoint on a local file system the sink notes where its batches are decided, and refuses any
other place (`spark.checkpoint`). This module checks what is possible without the cluster, for all outputs at
once, before anything is started.
"""

from typing import Final

from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import Definition, checkpoint_of
from tallystick.spark.checkpoint import folder_of, home_of
from tallystick.spark.protocol.transactional_ids import IN_DATABASE

_OWNER: Final = "tallystick-prefix"
"""File name of the note that earlier versions wrote: the prefix alone."""


def check_checkpoints(definition: Definition) -> None:
    """Check that no output's checkpoint belongs to another prefix.

    Raises: BadConfig listing all that do; BadCheckpoint, OSError.
    """
    problems = []
    for output in definition.outputs:
        checkpoint = checkpoint_of(definition, output)
        noted = _prefix_of(checkpoint)
        prefix = definition.prefix(output) + (IN_DATABASE if output.database else "")
        # Notes of earlier versions lack the place of the decisions.
        if noted not in (None, prefix, definition.prefix(output)):
            problems.append(
                f"checkpoint: {folder_of(checkpoint)} is of {noted!r}, and this is {prefix!r}: rows that "
                "were decided there would be written again here. Nothing was read; take back the old name, "
                "or another checkpoint; or, if it is to go on under the new name, --on-new-prefix adopt"
            )
    if problems:
        raise BadConfig("\n".join(problems))


def _prefix_of(checkpoint: str) -> str | None:
    home = home_of(checkpoint)
    if home is not None:
        return home.prefix
    folder = folder_of(checkpoint)
    owner = None if folder is None else folder / _OWNER
    return None if owner is None or not owner.exists() else owner.read_text().strip()
