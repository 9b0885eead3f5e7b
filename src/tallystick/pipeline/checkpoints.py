"""Whose a checkpoint is. One that goes on under another prefix would write a decided batch again [PIP-2].

Decisions are kept under the pipeline's name, offsets in its checkpoint: neither means anything without the
other. So each checkpoint on a file system of this machine holds a file with the prefix it was made for;
others (`s3a://...`) are not looked at.
"""

from pathlib import Path
from typing import Final

from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import Definition, Output

_OWNER: Final = "tallystick-prefix"


def checkpoint_of(definition: Definition, output: Output) -> str:
    """`checkpointLocation` of one output's query."""
    return f"{definition.checkpoint.rstrip('/')}/{output.name}"


def local_folder(checkpoint: str) -> Path | None:
    """A checkpoint as a folder of this machine; None for one that is elsewhere."""
    path = checkpoint.removeprefix("file://")
    return None if "://" in path else Path(path)


def claim_checkpoints(definition: Definition) -> None:
    """Note whose they are. Raises: BadConfig with every one that is another's; OSError."""
    problems = []
    for output in definition.outputs:
        folder = local_folder(checkpoint_of(definition, output))
        if folder is None:
            continue
        owner, prefix = folder / _OWNER, definition.prefix(output)
        found = owner.read_text().strip() if owner.exists() else None
        if found is None:
            folder.mkdir(parents=True, exist_ok=True)
            owner.write_text(f"{prefix}\n")
        elif found != prefix:
            problems.append(
                f"checkpoint: {folder} is of {found!r}, and this is {prefix!r}: rows that were decided there "
                "would be written again here. Nothing was read; take back the old name, or another checkpoint"
            )
    if problems:
        raise BadConfig("\n".join(problems))
