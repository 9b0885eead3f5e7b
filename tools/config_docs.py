"""Writes docs/config.md from the tables of settings in the code, so that both agree."""

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from tallystick.broker.config.broker_config import BROKER_SETTINGS, RENAMED_SETTINGS, TOPIC_SETTINGS
from tallystick.broker.config.kafka_names import INEFFECTIVE_SETTINGS, REFUSED_PREFIXES, REFUSED_SETTINGS
from tallystick.broker.config.listeners import LISTENER_PREFIX, PREFIXED_SETTINGS
from tallystick.broker.config.topic_config import DEFAULT_ONLY_SETTINGS
from tallystick.client.settings import kafka_names as client_names
from tallystick.client.settings.config import CLIENT_SETTINGS, ROLE_SETTINGS
from tallystick.kernel.foreign_settings import ForeignSetting
from tallystick.kernel.settings import Setting, SettingType
from tallystick.kernel.value import replace

TARGET = Path(__file__).parents[1] / "docs/config.md"

INTRODUCTION = """# Settings

Written by `tools/config_docs.py`; do not edit.

`tallystick broker` takes settings from `--config FILE` (the form of Kafka's `server.properties`),
`-o NAME=VALUE` and its own options; the last one wins. Names and defaults are Kafka 4.3's unless
noted. All problems, unknown names included, are reported together and stop the start.

## Durability

`flush.policy` decides the meaning of an acknowledgement, for every `acks` but 0:

| value | on the disk | power loss |
|---|---|---|
| `ack`, default of `tallystick broker` | before the answer, shared by all that wait | loses nothing |
| `interval` | within `log.flush.interval.ms` | may lose that long |
| `os`, default of `EmbeddedBroker` | when the system pleases, as with Kafka | may lose the last records |

A killed process loses nothing acknowledged under any of them.

## Broker

*dynamic* settings can be changed at run time, with `kafka-configs` or any AlterConfigs client.
"""


def main() -> None:
    settings_by_prefix = {
        name: replace(each, name=f"{LISTENER_PREFIX}<name>.{name}")
        for name, each in PREFIXED_SETTINGS.items()
    }
    parts = [INTRODUCTION, _format_table(BROKER_SETTINGS)]
    parts.append("\nOnly with the prefix of a listener:\n")
    parts.append(_format_table(settings_by_prefix))
    parts.append("\n## Topics\n\nEach falls back to the broker settings named, the first that is set.\n")
    parts.append(_format_table(TOPIC_SETTINGS, falls_back=True))
    parts.append("\nAccepted with their default only, there being one replica and no tiered storage:\n")
    parts.append(_format_names(DEFAULT_ONLY_SETTINGS))
    parts.append("\n## Aliases\n")
    parts.append(_format_renames(RENAMED_SETTINGS))
    parts.append(
        "\n## Accepted without effect\n\nA file written for Kafka may contain these; a warning at the start"
        " names them. They concern\nquorum, replication, thread pools, logins or tiered storage.\n"
    )
    parts.append(_format_names(sorted(INEFFECTIVE_SETTINGS)))
    parts.append(
        "\n## Refused\n\nThese need features that this broker does not have. Only Kafka's default, in"
        " brackets, is\naccepted.\n"
    )
    refusals = [(f"{prefix}*", "what this page names", why) for prefix, why in REFUSED_PREFIXES.items()]
    parts.append(_format_refusals(refusals + _list_refusals(REFUSED_SETTINGS)))
    TARGET.write_text("\n".join(parts + _describe_clients()))


CLIENTS = """
## Clients

`Producer`, `Consumer` and `Admin` take a mapping by these names. Names and defaults are Kafka
4.3's; librdkafka's names are understood, for security kafka-python's too. All problems are reported
together. Some take Python objects: `oauth_cb`, a function that returns a token and its expiry
(seconds or milliseconds since 1970); `sasl_oauth_token_provider`, an object with a method
`token()`; `ssl_context`, an `ssl.SSLContext`; and, as in confluent-kafka, the functions
`key.serializer`, `value.serializer`, `key.deserializer` and `value.deserializer`
([schemas](how-to/schemas.md)).
"""


def _describe_clients() -> list[str]:
    parts = [CLIENTS, _format_table(CLIENT_SETTINGS)]
    for role, settings in ROLE_SETTINGS.items():
        parts += [f"\n### {role.capitalize()}\n", _format_table(settings)]
    parts.append("\n### Aliases of client settings\n")
    parts.append(_format_renames(client_names.RENAMED_SETTINGS))
    parts.append("\n### Accepted by clients without effect\n\nA log message names them.\n")
    parts.append(_format_names(sorted(client_names.INEFFECTIVE_SETTINGS)))
    parts.append(
        "\n### Refused by clients\n\nThese need features that the clients do not have."
        " Only the values in brackets are accepted.\n"
    )
    refusals = [(f"{prefix}*", "", why) for prefix, why in client_names.REFUSED_PREFIXES.items()]
    parts.append(_format_refusals(refusals + _list_refusals(client_names.REFUSED_SETTINGS)))
    return parts


def _format_table(settings: dict[str, Setting], *, falls_back: bool = False) -> str:
    """Return a Markdown table of settings.

    Args:
        settings: the settings by their names.
        falls_back: add a column with the settings that each falls back to.
    """
    last = " falls back to |" if falls_back else ""
    rows = [f"| name | default | meaning |{last}", "|---|---|---|" + ("---|" if last else "")]
    for setting in settings.values():
        default = setting.format(setting.default)
        default_text = "not set" if default is None else f"`{default}`" if default else "empty"
        limits = [_describe_limits(setting), "dynamic" if setting.dynamic else ""]
        notes = f" *{'; '.join(filter(None, limits))}*" if any(limits) else ""
        cells = f"| `{setting.name}` | {default_text} | {setting.doc}{notes} |"
        synonyms = ", ".join(f"`{s.name}`" for s in setting.synonyms)
        rows.append(f"{cells} {synonyms} |" if falls_back else cells)
    return "\n".join(rows) + "\n"


def _describe_limits(setting: Setting) -> str:
    """Return the allowed values of a setting; an empty string where its type allows all."""
    if setting.choices:
        return setting.describe_allowed()
    if setting.kind not in (SettingType.INT, SettingType.LONG, SettingType.DOUBLE):
        return "password" if setting.kind is SettingType.PASSWORD else ""
    high = "or more" if setting.high is None else f"to {_format_number(setting.high)}"
    none = f", {setting.none} for none" if setting.none else ""
    return f"{_format_number(setting.low)} {high}{none}" if setting.low is not None else ""


def _list_refusals(settings: Mapping[str, ForeignSetting]) -> list[tuple[str, str, str]]:
    """Return name, allowed values and reason of each refused setting."""
    return [
        (name, ", ".join(f"`{value}`" if value else "empty" for value in each.allowed), each.reason)
        for name, each in settings.items()
    ]


def _format_refusals(refusals: Iterable[tuple[str, str, str]]) -> str:
    """Return a list of reasons, each with the names and accepted values of its settings."""
    names_by_reason: dict[str, list[str]] = {}
    for name, value, why in refusals:
        names_by_reason.setdefault(why, []).append(f"`{name}` ({value})" if value else f"`{name}`")
    items = (f"- {why[0].upper()}{why[1:]}: {', '.join(names)}." for why, names in names_by_reason.items())
    return "\n".join(wrap_words(item, indent="  ") for item in items) + "\n"


def _format_number(value: float) -> str:
    return f"{int(value)}" if value == int(value) else f"{value}"


def _format_names(names: Iterable[str]) -> str:
    return wrap_words(", ".join(f"`{name}`" for name in names) + ".") + "\n"


def _format_renames(renames: Mapping[str, str]) -> str:
    return wrap_words(", ".join(f"`{old}` is `{new}`" for old, new in renames.items()) + ".") + "\n"


def wrap_words(text: str, *, indent: str = "") -> str:
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
