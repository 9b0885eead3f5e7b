"""What Spark needs of us on this machine that can be made again: scripts, an archive of classes."""

import os
from pathlib import Path


def user_cache() -> Path:
    """Where this user's files are kept that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tallystick"


def keep_script(file: Path, text: str) -> None:
    """Write a program there, unless it is there already. Raises: OSError."""
    if file.exists() and file.read_text() == text:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed: another process may be starting it now.
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(file)
