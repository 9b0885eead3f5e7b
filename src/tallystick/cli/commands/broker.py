"""`tallystick broker`: the broker as a server process."""

import argparse
import errno
import logging
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tallystick.admin.scram import UserScramCredentialUpsertion
from tallystick.broker.config.broker_config import BrokerConfig, list_ineffective
from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.config.setting_texts import is_secret
from tallystick.broker.forget_config import forget_configs
from tallystick.broker.metadata.scram_credentials import CredentialChange, SaltedPassword
from tallystick.broker.notify import Notifier
from tallystick.broker.serve import MUST_BE_LOOKED_AT, Hooks, Service, run
from tallystick.broker.server.start_checks import parse_config
from tallystick.cli.examples import format_examples
from tallystick.cli.scram_text import parse_scram_argument
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.log_lines import (
    DEFAULT_FORMAT,
    DEFAULT_LEVEL,
    LOG_FORMATS,
    LOG_LEVELS,
    set_log_level,
    start_log,
)
from tallystick.kernel.settings import BadConfig, read_properties
from tallystick.security.sasl.scram import SCRAM_MECHANISMS, compute_salted_password, generate_nonce
from tallystick.security.secret_files import warn_of_readers, warn_of_visitors
from tallystick.storage.log_dir import DirectoryInUse

_log = logging.getLogger("tallystick.broker")

# Of an address or a resource that another process has now, or that the network brings later.
_PASSING: Final = frozenset(
    {
        *(errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ENETDOWN, errno.EAGAIN),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    }
)
_FOLDER_MODE: Final = 0o750
_FAILED: Final = 1
_BAD_SETTINGS: Final = 2


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT, and return the exit code.

    The code is 0; 1 for what may pass by itself, such as a port in use; 2 for invalid settings; 3 for a disk
    or files that a person must look at: another start would end the same way.
    """
    options = _build_parser().parse_args(arguments)
    log_format = options.log_format or DEFAULT_FORMAT
    start_log(options.log_level or DEFAULT_LEVEL, log_format)
    try:
        file = _read_file(options)
        settings = _merge_settings(file, options)
        level = settings.get("logging.level", DEFAULT_LEVEL)
        log_format = settings.get("logging.format", DEFAULT_FORMAT)
        start_log(level, log_format)
        if any(map(is_secret, file)):
            warn_of_readers("--config", options.config)
        config = _parse(settings)
        users = [_to_change(parse_scram_argument(text)) for text in options.add_scram]
    except BadConfig as exc:
        return _refuse(log_format, exc, _BAD_SETTINGS)
    unused = list_ineffective(settings)
    if unused:
        _log.warning("accepted, but without effect in this broker: %s", ", ".join(unused))
    try:
        if options.forget_config:
            for line in forget_configs(Path(config.log_dirs), options.forget_config):
                print(f"removed {line}")
            return 0
        Path(config.log_dirs).mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        warn_of_visitors("log.dirs", config.log_dirs)
        hooks = Hooks(
            ready=lambda service: _tell_started(service, log_format),
            users=users,
            read_config=lambda: _parse(_merge_settings(_read_file(options), options)),
            notifier=Notifier.take(),
        )
        return run(config, hooks)
    except BadConfig as exc:
        return _refuse(log_format, exc, _BAD_SETTINGS)
    except (TallystickError, OSError) as exc:
        return _refuse(log_format, exc, _FAILED if _may_pass(exc) else MUST_BE_LOOKED_AT)


def _may_pass(exc: Exception) -> bool:
    """Return whether a later start may succeed without a person's help."""
    if isinstance(exc, (DirectoryInUse, socket.gaierror)):
        return True
    return isinstance(exc, OSError) and exc.errno in _PASSING


def _refuse(log_format: str, exc: Exception, code: int) -> int:
    """Say why the broker does not run: on a line of its own, or as part of a log in JSON."""
    if log_format == "json":
        _log.critical("%s", exc)
    else:
        print(f"tallystick broker: {exc}".replace("\n", "\n  "), file=sys.stderr)
    return code


def _tell_started(service: Service, log_format: str) -> None:
    """Print the one line of a start, and log at the level in force, now and after a change."""
    if log_format == "json":
        _log.info("%s", service.describe())
    else:
        print(service.describe(), flush=True)
    service.broker.config_listeners.append(lambda config: set_log_level(config.logging_level))
    set_log_level(service.broker.config.logging_level)


def _parse(settings: Mapping[str, str]) -> BrokerConfig:
    """Return the configuration. Raises: BadConfig, also where no broker could start with it."""
    config = parse_config(settings)
    if not config.log_dirs:
        raise BadConfig("log.dirs: give --data-dir DIRECTORY")
    return config


def _read_file(options: argparse.Namespace) -> Mapping[str, str]:
    """Read the settings of `--config`; none without it. Raises: BadConfig."""
    if options.config is None:
        return {}
    try:
        return read_properties(Path(options.config).read_text("utf-8"), options.config)
    except OSError as exc:
        raise BadConfig(f"--config: {options.config}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:  # Java reads such files as Latin-1
        raise BadConfig(f"--config: {options.config}: is not UTF-8: {exc}") from exc


def _merge_settings(file: Mapping[str, str], options: argparse.Namespace) -> dict[str, str]:
    """Merge the settings by name: those of the file, then `-o`, then the options with their own names."""
    settings = dict(file)
    problems = []
    for text in options.option:
        name, equals, value = text.partition("=")
        if not equals:
            problems.append(f"-o {text}: is not NAME=VALUE")
        settings[name.strip()] = value.strip()
    if options.data_dir is not None:
        settings.pop("log.dir", None)
        settings["log.dirs"] = options.data_dir
    for flag, name in (("log_level", "logging.level"), ("log_format", "logging.format")):
        if getattr(options, flag) is not None:
            settings[name] = getattr(options, flag)
    for flag, name in (("listen", "listeners"), ("advertise", "advertised.listeners")):
        text = getattr(options, flag)
        if text is None:
            continue
        try:
            # An advertised address without a name is the one of the only listener.
            settings[name] = f"{'PLAINTEXT://' if flag == 'listen' else ''}{Endpoint.parse(text)}"
        except ValueError as exc:
            problems.append(f"--{flag}: {exc}")
    if problems:
        raise BadConfig("\n".join(problems))
    return settings


def _to_change(each: UserScramCredentialUpsertion) -> CredentialChange:
    mechanism, iterations = SCRAM_MECHANISMS[each.credential.mechanism], each.credential.iterations
    salt = generate_nonce().encode()
    salted = compute_salted_password(mechanism, each.password.reveal(), salt, iterations)
    return CredentialChange(each.user, mechanism.number, SaltedPassword(salt, salted, iterations))


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tallystick broker",
        description="Run a broker for any Kafka client. Settings have Kafka's names, see docs/config.md.",
        epilog=(format_examples("broker") or "").removeprefix("\b\n"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data-dir", metavar="DIR", help="where records and metadata are kept (log.dirs)")
    parser.add_argument("--listen", metavar="HOST:PORT", help="address to listen on; port 0 takes a free one")
    parser.add_argument("--advertise", metavar="HOST:PORT", help="address given to clients, if it is another")
    parser.add_argument("--config", metavar="FILE", help="settings, as in Kafka's server.properties")
    parser.add_argument(
        "-o", "--option", metavar="NAME=VALUE", action="append", default=[], help="one setting; repeatable"
    )
    parser.add_argument(
        "--add-scram",
        metavar="CREDENTIAL",
        action="append",
        default=[],
        help="a user of SCRAM to set, as SCRAM-SHA-512=[name=admin,password_file=FILE]; repeatable",
    )
    parser.add_argument(
        "--forget-config",
        metavar="NAME",
        action="append",
        default=[],
        help="remove a setting that was stored while the broker ran, TOPIC/NAME for a topic's, and exit;"
        " repeatable",
    )
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, help=f"what is logged (logging.level); {DEFAULT_LEVEL} by default"
    )
    parser.add_argument(
        "--log-format", choices=LOG_FORMATS, help="its form (logging.format): text, or an object a line"
    )
    return parser
