"""A SCRAM credential as `kafka-storage.sh format --add-scram` takes it.

    SCRAM-SHA-512=[name=alice,password=secret,iterations=8192]

`password_file=PATH` in place of the password keeps it out of the list of processes. A password may have any
character: only a comma before the name of another key ends it.

Source: KIP-900; Kafka ScramParser.
"""

import re
from pathlib import Path
from typing import Final

from tallystick.admin.scram import ScramCredentialInfo, UserScramCredentialUpsertion
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig
from tallystick.security.sasl.scram import ITERATIONS_MIN, SCRAM_MECHANISMS, SERVER_ITERATIONS_MAX
from tallystick.security.secret_files import warn_of_readers

_KEYS: Final = ("name", "password", "password_file", "iterations")
_ARGUMENT: Final = re.compile(r"([A-Z0-9-]+)=\[(.*)\]", re.DOTALL)
_PART: Final = re.compile(rf"(?:^|,)\s*({'|'.join(_KEYS)})=")


def parse_scram_argument(text: str) -> UserScramCredentialUpsertion:
    """Read one credential. Raises: BadConfig, which shows no password."""
    match = _ARGUMENT.fullmatch(text.strip())
    if match is None or match[1] not in SCRAM_MECHANISMS:
        raise BadConfig(
            f"--add-scram: must be MECHANISM=[name=USER,password=...], with {' or '.join(SCRAM_MECHANISMS)}"
        )
    pieces = _PART.split(match[2])
    names, values = pieces[1::2], pieces[2::2]
    if pieces[0].strip() or len(set(names)) < len(names):
        raise BadConfig(
            f"--add-scram: takes {', '.join(_KEYS)} once each, as NAME=VALUE, separated by commas"
        )
    fields = dict(zip(names, values, strict=True))
    if not fields.get("name") or ("password" in fields) == ("password_file" in fields):
        raise BadConfig("--add-scram: needs name, and either password or password_file")
    info = ScramCredentialInfo(match[1], parse_iterations(fields.get("iterations")))
    secret = fields["password"] if "password" in fields else read_password_file(Path(fields["password_file"]))
    return UserScramCredentialUpsertion(fields["name"], info, Secret(secret))


def parse_iterations(text: str | None) -> int:
    """Return a number of iterations within the broker's bounds. Raises: BadConfig."""
    if text is None:
        return ITERATIONS_MIN
    if not text.isdecimal() or not ITERATIONS_MIN <= int(text) <= SERVER_ITERATIONS_MAX:
        raise BadConfig(f"iterations: must be a number from {ITERATIONS_MIN} to {SERVER_ITERATIONS_MAX}")
    return int(text)


def read_password_file(path: Path) -> str:
    """Return the first line of a file. Raises: BadConfig."""
    warn_of_readers("password file", path)
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise BadConfig(f"{path}: the password cannot be read: {why}") from exc
    if not lines or not lines[0]:
        raise BadConfig(f"{path}: the first line, which is the password, is empty")
    return lines[0]
