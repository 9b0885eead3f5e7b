"""`tallystick broker`: the broker as a server process."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from tallystick.admin.scram import UserScramCredentialUpsertion
from tallystick.broker.config.broker_config import list_ineffective
from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.config.setting_texts import is_secret
from tallystick.broker.forget_config import forget_configs
from tallystick.broker.metadata.scram_credentials import CredentialChange, SaltedPassword
from tallystick.broker.serve import Service, run
from tallystick.broker.server.start_checks import parse_config
from tallystick.cli.examples import format_examples
from tallystick.cli.scram_text import parse_scram_argument
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.settings import BadConfig, read_properties
from tallystick.security.sasl.scram import SCRAM_MECHANISMS, compute_salted_password, generate_nonce
from tallystick.security.secret_files import warn_of_readers

_log = logging.getLogger("tallystick.broker")


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT, and return the exit code.

    The code is 0, or 1 for a failed start or disk, or 2 for invalid settings.
    """
    options = _build_parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        settings = _merge_settings(options)
        config = parse_config(settings)
        users = [_to_change(parse_scram_argument(text)) for text in options.add_scram]
        if not config.log_dirs:
            raise BadConfig("log.dirs: give --data-dir DIRECTORY")
    except BadConfig as exc:
        print(f"tallystick broker: {exc}".replace("\n", "\n  "), file=sys.stderr)
        return 2
    unused = list_ineffective(settings)
    if unused:
        _log.warning("accepted, but without effect in this broker: %s", ", ".join(unused))
    try:
        if options.forget_config:
            for line in forget_configs(Path(config.log_dirs), options.forget_config):
                print(f"removed {line}")
            return 0
        Path(config.log_dirs).mkdir(parents=True, exist_ok=True)
        return run(config, _print_started, users)
    except BadConfig as exc:
        print(f"tallystick broker: {exc}".replace("\n", "\n  "), file=sys.stderr)
        return 2
    except (TallystickError, OSError) as exc:
        print(f"tallystick broker: {exc}", file=sys.stderr)
        return 1


def _print_started(service: Service) -> None:
    print(service.describe(), flush=True)


def _merge_settings(options: argparse.Namespace) -> dict[str, str]:
    """Merge the settings by name: those of the file, then `-o`, then the options with their own names."""
    settings: dict[str, str] = {}
    problems = []
    if options.config is not None:
        try:
            settings |= read_properties(Path(options.config).read_text("utf-8"), options.config)
        except OSError as exc:
            raise BadConfig(f"--config: {exc}") from exc
        except UnicodeDecodeError as exc:  # Java reads such files as Latin-1
            raise BadConfig(f"--config: {options.config}: is not UTF-8: {exc}") from exc
        if any(map(is_secret, settings)):
            warn_of_readers("--config", options.config)
    for text in options.option:
        name, equals, value = text.partition("=")
        if not equals:
            problems.append(f"-o {text}: is not NAME=VALUE")
        settings[name.strip()] = value.strip()
    if options.data_dir is not None:
        settings.pop("log.dir", None)
        settings["log.dirs"] = options.data_dir
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
        "--log-level", default="info", choices=("debug", "info", "warning", "error"), help="what is logged"
    )
    return parser
