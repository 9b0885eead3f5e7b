"""Ownership check of checkpoints: continuing one under another prefix would repeat a decided batch [PIP-2].

Decisions are kept under the pipeline's name and offsets in its checkpoint; neither is meaningful without the
other. In a checkpoint on a local file system the sink notes where its batches are decided, and refuses any
other place (`spark.checkpoint`). This module checks what is possible without the cluster, for all outputs at
once, before anything is started.
"""

from typing import Final

from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import Definition, checkpoint_location
from tallystick.spark.checkpoint import local_folder_of, read_decision_location
from tallystick.spark.protocol.transactional_ids import DATABASE_SUFFIX

_PREFIX_FILE: Final = "tallystick-prefix"
"""File name of the note that earlier versions wrote: the prefix alone."""


def check_checkpoints(definition: Definition) -> None:
    """Check that no output's checkpoint belongs to another prefix.

    Raises: BadConfig listing all that do; BadCheckpoint, OSError.
    """
    problems = []
    for output in definition.outputs:
        checkpoint = checkpoint_location(definition, output)
        noted = _read_prefix(checkpoint)
        prefix = definition.prefix_of(output) + (DATABASE_SUFFIX if output.database else "")
        # Notes of earlier versions lack the place of the decisions.
        if noted not in (None, prefix, definition.prefix_of(output)):
            problems.append(
                f"checkpoint: {local_folder_of(checkpoint)} is of {noted!r}, and this is {prefix!r}: rows "
                "that were decided there would be written again here. Nothing was read; take back the old "
                "name, or another checkpoint; or, if it is to go on under the new name, --on-new-prefix adopt"
            )
    if problems:
        raise BadConfig("\n".join(problems))


def _read_prefix(checkpoint: str) -> str | None:
    home = read_decision_location(checkpoint)
    if home is not None:
        return home.prefix
    folder = local_folder_of(checkpoint)
    owner = None if folder is None else folder / _PREFIX_FILE
    return None if owner is None or not owner.exists() else owner.read_text().strip()
