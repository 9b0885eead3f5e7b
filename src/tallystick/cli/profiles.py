"""Profiles of the command line: named settings of clusters, in a TOML file that only its user can read.

    in-use = "staging"

    [profiles.staging]
    "bootstrap.servers" = "staging-1:9092"
    command-config = "/home/ada/staging.properties"

The file is `profiles.toml` in `$TALLYSTICK_CONFIG_HOME`, else in `$XDG_CONFIG_HOME/tallystick`, else in
`~/.config/tallystick`.
"""

import fcntl
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tallystick.client.settings.config import CLIENT_SETTINGS, ROLE_SETTINGS
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig, SettingType, read_properties
from tallystick.kernel.value import Value, replace
from tallystick.security.secret_files import warn_of_readers

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_IN_USE: Final = "in-use"
_COMMAND_CONFIG: Final = "command-config"


class Profile(Value, kw_only=True):
    """Named settings of a cluster.

    settings        of the client, by Kafka's names; stronger than those of the file. What is not known to
                    be harmless is a secret
    command_config  a file with more settings
    """

    settings: Mapping[str, str | Secret]
    command_config: Path | None = None

    @classmethod
    def build(cls, texts: Mapping[str, str], command_config: Path | None = None) -> "Profile":
        """Build a profile of settings as they were given."""
        settings = {name: text if _is_harmless(name) else Secret(text) for name, text in texts.items()}
        return cls(settings=settings, command_config=command_config)

    def read_settings(self) -> dict[str, str]:
        """Return all settings, those of the file and the passwords too. Raises: BadConfig."""
        texts = {} if self.command_config is None else read_settings_file("profile", self.command_config)
        return texts | {name: _reveal(value) for name, value in self.settings.items()}


class Profiles(Value, kw_only=True):
    """All profiles, and the name of the one in use."""

    by_name: Mapping[str, Profile] = {}
    in_use: str | None = None

    def find(self, name: str) -> Profile:
        """Return a profile. Raises: BadConfig, which names those that there are."""
        if name not in self.by_name:
            names = f"there are {', '.join(sorted(self.by_name))}" if self.by_name else "there are none"
            raise BadConfig(f"profile {name!r}: there is no such profile; {names}")
        return self.by_name[name]

    def add(self, name: str, profile: Profile) -> "Profiles":
        """Add a profile; the first one comes into use. Raises: BadConfig if the name is taken or no name."""
        if not _NAME.fullmatch(name):
            raise BadConfig(f"profile {name!r}: a name has letters, digits, dots, hyphens and underscores")
        if name in self.by_name:
            raise BadConfig(f"profile {name!r}: there is one already; delete it first")
        return Profiles(by_name={**self.by_name, name: profile}, in_use=self.in_use or name)

    def use(self, name: str) -> "Profiles":
        """Choose the profile in use. Raises: BadConfig."""
        self.find(name)
        return replace(self, in_use=name)

    def remove(self, name: str) -> "Profiles":
        """Remove a profile; if it was in use, none is. Raises: BadConfig."""
        self.find(name)
        others = {each: profile for each, profile in self.by_name.items() if each != name}
        return Profiles(by_name=others, in_use=None if self.in_use == name else self.in_use)


def locate_profiles() -> Path:
    """Return the path of the file with the profiles, which may not exist."""
    own = os.environ.get("TALLYSTICK_CONFIG_HOME")
    if own:
        return Path(own) / "profiles.toml"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tallystick" / "profiles.toml"


def find_profile(name: str) -> Profile:
    """Return the profile that `--profile` names. Raises: BadConfig."""
    return read_profiles().find(name)


def read_profiles() -> Profiles:
    """Read the profiles; none if there is no file. Raises: BadConfig, which names the file."""
    path = locate_profiles()
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Profiles()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise BadConfig(f"{path}: {_describe(exc)}") from exc
    warn_of_readers("profiles", path)
    tables, in_use = document.pop("profiles", {}), document.pop(_IN_USE, None)
    is_ours = isinstance(tables, dict) and isinstance(in_use, str | None) and not document
    if not is_ours or not all(isinstance(table, dict) for table in tables.values()):
        raise BadConfig(f"{path}: must have {_IN_USE} = NAME and tables [profiles.NAME], and nothing else")
    by_name = {name: _read_profile(f"{path}: profile {name!r}", table) for name, table in tables.items()}
    return Profiles(by_name=by_name, in_use=in_use)


def change_profiles(change: Callable[[Profiles], Profiles]) -> Profiles:
    """Replace the file by what `change` makes of it, alone at a time, readable by its user alone.

    Raises: BadConfig.
    """
    path = locate_profiles().resolve()  # a link, to a folder under version control, stays
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            profiles = change(read_profiles())
            _replace_file(path, _format_profiles(profiles))
        finally:
            os.close(folder)
    except OSError as exc:
        raise BadConfig(f"{path}: {_describe(exc)}") from exc
    return profiles


def _format_profiles(profiles: Profiles) -> str:
    lines = [] if profiles.in_use is None else [f"{_IN_USE} = {_quote(profiles.in_use)}"]
    for name, profile in profiles.by_name.items():
        lines += ["", f"[profiles.{_quote(name)}]"]
        if profile.command_config is not None:
            lines.append(f"{_COMMAND_CONFIG} = {_quote(str(profile.command_config))}")
        lines += [f"{_quote(key)} = {_quote(_reveal(value))}" for key, value in profile.settings.items()]
    return "\n".join(lines) + "\n"


def _replace_file(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # an empty file would be read as no profiles
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def read_settings_file(source: str, path: Path) -> dict[str, str]:
    """Read a file of client settings.

    Args:
        source: the option or key that names it.
    Raises: BadConfig.
    """
    try:
        return read_properties(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfig(f"{source}: {path}: {_describe(exc)}") from exc


def _describe(error: Exception) -> str:
    match error:
        case OSError(strerror=str(text)):
            return text
        case UnicodeDecodeError():
            return f"is not UTF-8: {error}"
        case _:
            return str(error)


def _read_profile(source: str, table: Mapping[str, object]) -> Profile:
    texts = {name: _to_text(f"{source}: {name}", value) for name, value in table.items()}
    file = texts.pop(_COMMAND_CONFIG, None)
    return Profile.build(texts, None if file is None else Path(file))


def _to_text(source: str, value: object) -> str:
    if not isinstance(value, str | int | float):
        raise BadConfig(f"{source}: must be a text, a number, true or false")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _reveal(value: str | Secret) -> str:
    return value.reveal() if isinstance(value, Secret) else value


def _quote(text: str) -> str:
    """Write a text as TOML does: as in JSON, and DEL as an escape."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_harmless(name: str) -> bool:
    for settings in (CLIENT_SETTINGS, *ROLE_SETTINGS.values()):
        if name in settings:
            return settings[name].kind is not SettingType.PASSWORD
    return False
