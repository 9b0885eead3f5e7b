"""Every problem of a configuration at once: of its settings, and of the keys that they name."""

from collections.abc import Mapping

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.kernel.settings import BadConfig, collect_problems
from tallystick.security.tls.contexts import load_server_tls


def parse_config(originals: Mapping[str, str]) -> BrokerConfig:
    """Return the configuration for a start; keys are loaded when the server is made.

    Raises: BadConfig. With problems of settings it has those of the keys, too, where these can be looked at.
    """
    config, problems = BrokerConfig.read(originals)
    if not problems:
        return config
    for listener in config.list_sound_listeners():
        if not listener.protocol.uses_tls:
            continue
        own: list[str] = []
        with collect_problems(own):
            load_server_tls(listener.tls)
        problems += [f"listener {listener.name}: {line}" for line in own]
    raise BadConfig("\n".join(problems))
