"""Files and folders that other users of the machine may read: a warning, because they work all the same."""

import logging
import os
import stat

_log = logging.getLogger("tallystick.security.files")


def warn_of_readers(source: str, path: str | os.PathLike[str]) -> None:
    """Log a warning if users outside the file's group may read or change it.

    A group may: what Kubernetes mounts is its pod's group's. A missing file is told of by its reader.

    Args:
        source: the setting or option that names the file.
    """
    mode = _get_mode(path)
    if mode & stat.S_IRWXO:
        _log.warning(
            "%s %s: other users of this machine may read or change it, mode %04o: chmod 600 it, and choose "
            "another secret if they are not trusted",
            source,
            os.fspath(path),
            mode,
        )


def warn_of_visitors(source: str, path: str | os.PathLike[str]) -> None:
    """Log a warning if users outside a folder's group may look into it.

    Args:
        source: the setting that names it.
    """
    mode = _get_mode(path)
    if mode & stat.S_IRWXO:
        _log.warning(
            "%s %s: other users of this machine may look for records in it, mode %04o: chmod 750 it",
            source,
            os.fspath(path),
            mode,
        )


def has_readers(path: str | os.PathLike[str]) -> bool:
    """Return whether users outside a file's group may read or change it."""
    return bool(_get_mode(path) & stat.S_IRWXO)


def _get_mode(path: str | os.PathLike[str]) -> int:
    """Return the permissions, none of a missing path."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return 0
