"""Texts of settings by name, as they were given; those of passwords are never shown."""

from typing import Final

from tallystick.broker.config.listeners import JAAS, LISTENER_SETTINGS
from tallystick.kernel.secret import HIDDEN
from tallystick.kernel.settings import SettingType

_SECRETS: Final = (
    JAAS,
    *(name for name, setting in LISTENER_SETTINGS.items() if setting.kind is SettingType.PASSWORD),
)


def is_secret(name: str) -> bool:
    """Return whether the text of a setting is a secret, with or without the prefix of a listener."""
    return name.endswith(_SECRETS)


class SettingTexts(dict[str, str]):
    """Texts by name, to be read only."""

    def __repr__(self) -> str:
        return repr({name: HIDDEN if is_secret(name) else text for name, text in self.items()})
