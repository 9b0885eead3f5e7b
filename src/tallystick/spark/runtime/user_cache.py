"""The user's cache directory, with files that can be recreated: scripts and Spark's class archive."""

import os
from pathlib import Path
from typing import Final

# Debian's name for a missing home directory: an account may have none, as in a container.
_NO_HOME: Final = Path("/nonexistent")


def find_user_cache_dir() -> Path:
    """Return the directory for this user's files that can be recreated; it may not be writable."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if base.is_absolute():  # relative paths are ignored: XDG Base Directory Specification, "Basics"
        return base / "tallystick"
    try:
        home = Path.home()
    except RuntimeError:
        home = _NO_HOME
    return home / ".cache" / "tallystick"


def write_script_once(file: Path, text: str) -> None:
    """Write a script to a file unless it is there already. Raises: OSError, also if it cannot be executed."""
    if not file.exists() or file.read_text() != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Written to a draft and renamed: another process may be starting it now.
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(file)
    if not os.access(file, os.X_OK):
        raise PermissionError(f"programs in {file.parent} may not be run")
