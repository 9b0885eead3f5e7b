"""Writes docs/config.md from the tables of settings in the code, so that both agree."""

from collections.abc import Mapping
from pathlib import Path

from tallystick.broker.config.broker_config import BROKER_SETTINGS, RENAMED_SETTINGS, TOPIC_SETTINGS
from tallystick.broker.config.kafka_names import INEFFECTIVE_SETTINGS, REFUSED_PREFIXES, REFUSED_SETTINGS
from tallystick.broker.config.listeners import LISTENER_PREFIX, PREFIXED_SETTINGS
from tallystick.broker.config.topic_config import DEFAULT_ONLY_SETTINGS
from tallystick.client import kafka_names as client_names
from tallystick.client.config import CLIENT_SETTINGS, ROLE_SETTINGS
from tallystick.kernel.foreign_settings import ForeignSetting
from tallystick.kernel.settings import Setting
from tallystick.kernel.value import replace

TARGET = Path(__file__).parents[1] / "docs/config.md"

INTRODUCTION = """# Settings

Written by `tools/config_docs.py`; do not edit.

`tallystick broker` takes settings from `--config FILE` (the form of Kafka's `server.properties`),
`-o NAME=VALUE` and options of its own, the last one winning. Names and defaults are Kafka 4.3's; what is not
Kafka's says so. Every problem is reported at once and stops the start; an unknown name is a problem.

## Durability

`flush.policy` decides what an acknowledgement means, for every `acks` but 0:

| value | on the disk | power loss |
|---|---|---|
| `ack`, default of `tallystick broker` | before the answer, shared by all that wait | loses nothing |
| `interval` | within `log.flush.interval.ms` | may lose that long |
| `os`, default of `EmbeddedBroker` | when the system pleases, as with Kafka | may lose the last records |

A killed process loses nothing acknowledged under any of them.

## Broker

*dynamic* ones can be changed while running, with `kafka-configs` or any AlterConfigs client.
"""


def main() -> None:
    settings_by_prefix = {
        name: replace(each, name=f"{LISTENER_PREFIX}<name>.{name}")
        for name, each in PREFIXED_SETTINGS.items()
    }
    parts = [INTRODUCTION, _format_table(BROKER_SETTINGS, dynamic=True)]
    parts.append("\nOnly with the prefix of a listener:\n")
    parts.append(_format_table(settings_by_prefix, dynamic=True))
    parts.append("\n## Topics\n\nEach falls back to the broker settings named, the first that is set.\n")
    parts.append(_format_table(TOPIC_SETTINGS, dynamic=False))
    parts.append("\nAccepted with their default only, there being one replica and no tiered storage:\n")
    parts.append(", ".join(f"`{name}`" for name in DEFAULT_ONLY_SETTINGS) + ".\n")
    parts.append("\n## Aliases\n")
    parts.append(", ".join(f"`{old}` is `{new}`" for old, new in RENAMED_SETTINGS.items()) + ".\n")
    parts.append(
        "\n## Accepted without effect\n\nA file written for Kafka may contain these; a warning at the start"
        " names them. They concern quorum, replication, thread pools, logins or tiered storage.\n"
    )
    parts.append(", ".join(f"`{name}`" for name in sorted(INEFFECTIVE_SETTINGS)) + ".\n")
    parts.append(
        "\n## Refused\n\nThese need features that this broker does not have."
        " Only Kafka's default is accepted.\n"
    )
    parts.append("| name | accepted | why |\n|---|---|---|")
    rows = [
        (f"{prefix}*", "only what is named on this page", why) for prefix, why in REFUSED_PREFIXES.items()
    ]
    parts[-1] += _format_refused(rows, REFUSED_SETTINGS)
    TARGET.write_text("\n".join(parts + _describe_clients()))


CLIENTS = """
## Clients

What `Producer`, `Consumer` and `Admin` take: a mapping by these names. Names and defaults are Kafka 4.3's,
and librdkafka's names of the same are understood; for security, kafka-python's as well. Every problem is
reported at once. Three names take objects of Python and not texts: `oauth_cb`, a function that returns a
token and when it expires (in seconds or milliseconds since 1970), `sasl_oauth_token_provider`, an object
whose method `token()` returns one, and `ssl_context`, an `ssl.SSLContext` that is used as it is.
Four are functions, as in confluent-kafka: `key.serializer` and `value.serializer` of a producer take an
object and a context (`topic`, `field`, `headers`) and return bytes, `key.deserializer` and
`value.deserializer` of a consumer do the reverse: [schemas](how-to/schemas.md).
"""


def _describe_clients() -> list[str]:
    parts = [CLIENTS, _format_table(CLIENT_SETTINGS, dynamic=None)]
    for role, settings in ROLE_SETTINGS.items():
        parts += [f"\n### {role.capitalize()}\n", _format_table(settings, dynamic=None)]
    parts.append("\n### Aliases of client settings\n")
    parts.append(
        ", ".join(f"`{old}` is `{new}`" for old, new in client_names.RENAMED_SETTINGS.items()) + ".\n"
    )
    parts.append("\n### Accepted by clients without effect\n\nA log message names them.\n")
    parts.append(", ".join(f"`{name}`" for name in sorted(client_names.INEFFECTIVE_SETTINGS)) + ".\n")
    parts.append("\n### Refused by clients\n\nThese need features that the clients do not have.\n")
    parts.append("| name | accepted | why |\n|---|---|---|")
    rows = [(f"{prefix}*", "never", why) for prefix, why in client_names.REFUSED_PREFIXES.items()]
    parts[-1] += _format_refused(rows, client_names.REFUSED_SETTINGS)
    return parts


def _format_refused(rows: list[tuple[str, str, str]], settings: Mapping[str, ForeignSetting]) -> str:
    for name, each in settings.items():
        values = ", ".join(f"`{value}`" if value else "empty" for value in each.allowed)
        rows.append((name, values or "never", each.reason))
    return "".join(f"\n| `{name}` | {text} | {why} |" for name, text, why in rows) + "\n"


def _format_table(settings: dict[str, Setting], *, dynamic: bool | None) -> str:
    """Return a Markdown table of settings.

    Args:
        settings: the settings by their names.
        dynamic: True adds a column that says which settings can be changed at run time, False one with the
            setting each falls back to, None neither.
    """
    last = "" if dynamic is None else " dynamic |" if dynamic else " falls back to |"
    rows = [f"| name | default | allowed | meaning |{last}", "|---|---|---|---|" + ("---|" if last else "")]
    for setting in settings.values():
        default = setting.format(setting.default)
        default_text = "not set" if default is None else f"`{default}`" if default else "empty"
        extra = (
            ("yes" if setting.dynamic else "")
            if dynamic
            else ", ".join(f"`{s.name}`" for s in setting.synonyms)
        )
        cells = f"| `{setting.name}` | {default_text} | {setting.describe_allowed()} | {setting.doc} |"
        rows.append(f"{cells} {extra} |" if last else cells)
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
