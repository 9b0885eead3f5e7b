"""The cluster of a command and the settings of its clients: the one place that chooses them.

The first of these that names brokers is taken:

1. `--bootstrap-server`, a setting on the command line, or `--command-config FILE`
2. `--profile NAME`
3. `TALLYSTICK_BOOTSTRAP_SERVER`
4. the profile in use

A profile that only is in use is taken whole or not at all: its login must not go to brokers that were named
in another way. `--profile` together with `--bootstrap-server` sends it there on purpose.
"""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Annotated, Final

import typer

from tallystick.cli.profiles import Profile, find_profile, read_profiles, read_settings_file
from tallystick.client.settings.config import Address
from tallystick.client.settings.kafka_names import RENAMED_SETTINGS
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value

BOOTSTRAP_VARIABLE: Final = "TALLYSTICK_BOOTSTRAP_SERVER"
_BOOTSTRAP: Final = "bootstrap.servers"

PATIENCE_MS: Final = 10_000
"""How long a command of a person waits for the cluster, unless a setting or option says otherwise."""
_LIMITS: Final = {
    "default.api.timeout.ms": PATIENCE_MS,
    "max.block.ms": PATIENCE_MS,
    "request.timeout.ms": PATIENCE_MS,
}

_LOOKUP_S: Final = 2

BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap-servers",
        metavar="HOST:PORT",
        help=f"Brokers to ask first; else {BOOTSTRAP_VARIABLE}, or a profile.",
    ),
]
CommandConfig = Annotated[
    Path | None, typer.Option("--command-config", metavar="FILE", help="Settings of the client.")
]
ProfileName = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Use this profile; see `tallystick profile`."),
]


class ClusterOptions(Value):
    """The options that say which cluster is meant."""

    bootstrap_server: str | None = None
    command_config: Path | None = None
    profile: str | None = None


def build_config(
    options: ClusterOptions, settings: Mapping[str, str] | None = None, *, serves: bool = False
) -> dict[str, object]:
    """Build the client's configuration of the cluster.

    Args:
        settings: more settings from the command line, stronger than all others.
        serves: the command runs until it is stopped, so that Kafka's own limits are right.
    Returns: settings without brokers if nothing names any; the client that is built of them says so.
    Raises: BadConfig.
    """
    given: dict[str, object] = {}
    if options.command_config is not None:
        given |= read_settings_file("--command-config", options.command_config)
    if options.bootstrap_server is not None:
        given[_BOOTSTRAP] = options.bootstrap_server
    given |= settings or {}
    from_environment = os.environ.get(BOOTSTRAP_VARIABLE, "")
    profile = None
    if options.profile is not None:
        profile = find_profile(options.profile)
    elif not (_names_cluster(given) or from_environment):
        profile = _use_profile()
    config: dict[str, object] = {"client.id": "tallystick-cli"}
    config |= {} if profile is None else profile.read_settings()
    config |= given
    if from_environment and not _names_cluster(config):
        config[_BOOTSTRAP] = from_environment
    if not serves and not _LIMITS.keys() & {RENAMED_SETTINGS.get(name, name) for name in config}:
        config |= _LIMITS
    return config


def _use_profile() -> Profile | None:
    """Return the profile in use, and remind a person at a terminal of it."""
    profiles = read_profiles()
    if profiles.in_use is None:
        return None
    profile = profiles.find(profiles.in_use)
    if sys.stderr.isatty():
        print(f"profile {profiles.in_use}", file=sys.stderr)
    return profile


def limit_calls(config: dict[str, object], timeout_ms: int) -> None:
    """Let no call take longer than `--timeout-ms`."""
    request_ms = int(str(config.get("request.timeout.ms", timeout_ms)))
    config |= {
        "default.api.timeout.ms": timeout_ms,
        "max.block.ms": timeout_ms,
        "request.timeout.ms": min(timeout_ms, request_ms),
    }


def check_hosts(config: Mapping[str, object]) -> None:
    """End at once if no broker's host has an address: trying again would not help a person.

    A resolver that does not answer for a while is left to the client's own attempts.
    Raises: BadConfig.
    """
    texts = str(config.get(_BOOTSTRAP, "")).split(",")
    try:
        hosts = [Address.parse(text).host for text in texts]
    except ValueError:
        return  # which the client will refuse
    unknown: list[str] = []

    def look_up() -> None:
        for host in hosts:
            try:
                socket.getaddrinfo(host, None)
            except socket.gaierror as exc:
                if exc.errno == socket.EAI_NONAME:
                    unknown.append(host)

    lookup = Thread(target=look_up, daemon=True)
    lookup.start()
    lookup.join(_LOOKUP_S)
    if len(unknown) == len(hosts):
        raise BadConfig(f"{_BOOTSTRAP}: there is no host {' or '.join(unknown)}")


def _names_cluster(config: Mapping[str, object]) -> bool:
    return any(RENAMED_SETTINGS.get(name, name) == _BOOTSTRAP for name in config)
