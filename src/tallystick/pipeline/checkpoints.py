"""Whose a checkpoint is. One that goes on under another prefix would write a decided batch again [PIP-2].

Decisions are kept under the pipeline's name, offsets in its checkpoint: neither means anything without the
other. The sink notes in a checkpoint on a file system of this machine where its batches are decided, and
refuses another place (`spark.checkpoint`). What can be told without the cluster is told here, before anything
is started, and of all outputs at once.
"""

from typing import Final

from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import Definition, checkpoint_of
from tallystick.spark.checkpoint import folder_of, home_of
from tallystick.spark.protocol.transactional_ids import IN_DATABASE

_OWNER: Final = "tallystick-prefix"
"""The note of earlier versions: the prefix alone."""


def check_checkpoints(definition: Definition) -> None:
    """Raises: BadConfig with every one that is another's; BadCheckpoint, OSError."""
    problems = []
    for output in definition.outputs:
        checkpoint = checkpoint_of(definition, output)
        noted = _prefix_of(checkpoint)
        prefix = definition.prefix(output) + (IN_DATABASE if output.database else "")
        # An earlier version's note did not say where.
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
