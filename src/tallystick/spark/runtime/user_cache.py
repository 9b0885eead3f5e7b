"""What Spark needs of us on this machine that can be made again: scripts, an archive of classes."""

import os
from pathlib import Path
from typing import Final

# Debian's name for what is not there: an account may have no folder, as in a container.
_NO_HOME: Final = Path("/nonexistent")


def user_cache() -> Path:
    """Where this user's files are kept that can be made again; it may be impossible to write there."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if base.is_absolute():  # else it says nothing: XDG Base Directory Specification, "Basics"
        return base / "tallystick"
    try:
        home = Path.home()
    except RuntimeError:
        home = _NO_HOME
    return home / ".cache" / "tallystick"


def keep_script(file: Path, text: str) -> None:
    """Write a program there, unless it is there already. Raises: OSError, also where no program may run."""
    if not file.exists() or file.read_text() != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: another process may be starting it now.
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(file)
    if not os.access(file, os.X_OK):
        raise PermissionError(f"programs in {file.parent} may not be run")
