"""The examples at the end of each `--help`: what people type most, two of each command.

Loaded by the broker's own parser too, so it imports nothing.
"""

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, str]]] = {
    "": (
        "tallystick topics list --bootstrap-server localhost:9092",
        "tallystick doctor --bootstrap-server localhost:9092",
    ),
    "broker": (
        "tallystick broker --data-dir data",
        "tallystick broker --data-dir data -o transaction.two.phase.commit.enable=true",
    ),
    "produce": (
        "printf 'tea\\nmilk\\n' | tallystick produce orders",
        "tallystick produce orders --transactional-id shop --prepare-only < orders.txt",
    ),
    "consume": (
        "tallystick consume orders --from-beginning",
        "tallystick consume orders --isolation-level read_committed --output json --max-messages 5",
    ),
    "run": (
        "tallystick run flights.toml",
        "tallystick run flights.toml --explain",
    ),
    "demo": (
        "tallystick demo --quick",
        "tallystick demo --rows 20000 --crash broker",
    ),
    "transactions": (
        "tallystick transactions list --state Ongoing",
        "tallystick transactions describe shop",
    ),
    "transactions list": (
        "tallystick transactions list",
        "tallystick transactions list --state Ongoing --duration-filter 60000",
    ),
    "transactions describe": (
        "tallystick transactions describe shop",
        "tallystick transactions describe shop --history",
    ),
    "transactions describe-producers": (
        "tallystick transactions describe-producers orders --partition 0",
        "tallystick transactions describe-producers orders --partition 0 --broker 1",
    ),
    "transactions find-hanging": (
        "tallystick transactions find-hanging",
        "tallystick transactions find-hanging --topic orders --max-transaction-timeout 5",
    ),
    "transactions abort": (
        "tallystick transactions abort orders --partition 0 --start-offset 4711",
        "tallystick transactions abort orders --partition 0 --start-offset 4711 --audit-log audit.log",
    ),
    "transactions force-terminate": (
        "tallystick transactions force-terminate shop",
        "tallystick transactions force-terminate shop --yes --audit-log audit.log",
    ),
    "transactions complete": (
        "tallystick transactions complete shop 1:0",
        "tallystick transactions complete shop ''",
    ),
    "transactions resolve": (
        "tallystick transactions resolve --store postgresql+psycopg://shop@db/shop --dry-run",
        "tallystick transactions resolve --prefix flights.delays",
    ),
    "topics": (
        "tallystick topics create orders --partitions 3",
        "tallystick topics describe orders",
    ),
    "topics list": (
        "tallystick topics list",
        "tallystick topics list --internal --output json",
    ),
    "topics describe": (
        "tallystick topics describe",
        "tallystick topics describe orders payments",
    ),
    "topics create": (
        "tallystick topics create orders",
        "tallystick topics create orders --partitions 3 --config retention.ms=86400000",
    ),
    "topics alter": (
        "tallystick topics alter orders --partitions 6",
        "tallystick topics alter orders payments --partitions 6",
    ),
    "topics delete": (
        "tallystick topics delete orders",
        "tallystick topics delete orders payments --yes",
    ),
    "topics delete-records": (
        "tallystick topics delete-records orders --before-offset 1000",
        "tallystick topics delete-records orders:0,2 --before-offset -1",
    ),
    "groups": (
        "tallystick groups list",
        "tallystick groups describe billing",
    ),
    "groups list": (
        "tallystick groups list",
        "tallystick groups list --state Stable",
    ),
    "groups describe": (
        "tallystick groups describe",
        "tallystick groups describe billing --output json",
    ),
    "groups delete": (
        "tallystick groups delete billing",
        "tallystick groups delete billing audit --yes",
    ),
    "groups reset-offsets": (
        "tallystick groups reset-offsets billing --topic orders --to-earliest",
        "tallystick groups reset-offsets billing --all-topics --to-datetime 2026-11-21T12:00:00Z --execute",
    ),
    "groups delete-offsets": (
        "tallystick groups delete-offsets billing --topic orders",
        "tallystick groups delete-offsets billing --topic orders:0,2 --yes",
    ),
    "lake": (
        "tallystick lake vacuum-orphans delta:/lake/delays --dry-run",
        "tallystick lake vacuum-orphans delta:/lake/delays",
    ),
    "lake vacuum-orphans": (
        "tallystick lake vacuum-orphans delta:/lake/delays --dry-run",
        "tallystick lake vacuum-orphans delta:/lake/delays --prefix flights.delays --older-than 48",
    ),
    "configs": (
        "tallystick configs describe topics orders",
        "tallystick configs alter topics orders --add-config retention.ms=86400000",
    ),
    "configs describe": (
        "tallystick configs describe topics orders",
        "tallystick configs describe brokers 1 --all",
    ),
    "configs alter": (
        "tallystick configs alter topics orders --add-config retention.ms=86400000",
        "tallystick configs alter topics orders --delete-config retention.ms",
    ),
    "acls": (
        "tallystick acls list --topic orders",
        "tallystick acls create --allow-principal User:shop --topic orders --operation Write",
    ),
    "acls list": (
        "tallystick acls list",
        "tallystick acls list --topic orders --principal User:shop",
    ),
    "acls create": (
        "tallystick acls create --allow-principal User:shop --topic orders --operation Write",
        "tallystick acls create --allow-principal User:shop --transactional-id shop --operation All",
    ),
    "acls delete": (
        "tallystick acls delete --topic orders --principal User:shop",
        "tallystick acls delete --topic orders --operation Write --yes",
    ),
    "users": (
        "tallystick users create shop",
        "tallystick users list",
    ),
    "users list": (
        "tallystick users list",
        "tallystick users list shop",
    ),
    "users create": (
        "tallystick users create shop",
        "tallystick users create shop --mechanism SCRAM-SHA-256 --password-file shop.password",
    ),
    "users delete": (
        "tallystick users delete shop",
        "tallystick users delete shop --mechanism SCRAM-SHA-256",
    ),
    "console": (
        "tallystick console --store postgresql+psycopg://shop@db/shop",
        "tallystick console --listen 127.0.0.1:8081 --allow-actions --audit-log audit.log",
    ),
    "top": (
        "tallystick top --store postgresql+psycopg://shop@db/shop",
        "tallystick top --once",
    ),
    "doctor": (
        "tallystick doctor --transactional-id shop --topic orders --role writer",
        "tallystick doctor --command-config shop.properties --output json",
    ),
    "features": (
        "tallystick features describe",
        "tallystick features upgrade transaction.version=2",
    ),
    "features describe": (
        "tallystick features describe",
        "tallystick features describe --output json",
    ),
    "features upgrade": (
        "tallystick features upgrade transaction.version=2 --dry-run",
        "tallystick features upgrade transaction.version=2",
    ),
    "features downgrade": (
        "tallystick features downgrade transaction.version=1 --dry-run",
        "tallystick features downgrade transaction.version=1",
    ),
    "profile": (
        "tallystick profile create staging --bootstrap-server staging-1:9092",
        "tallystick profile use staging",
    ),
    "profile list": (
        "tallystick profile list",
        "tallystick profile list --output json",
    ),
    "profile create": (
        "tallystick profile create local --bootstrap-server localhost:9092",
        "tallystick profile create prod --bootstrap-server kafka-1:9092 --command-config prod.properties",
    ),
    "profile use": (
        "tallystick profile use staging",
        "tallystick topics list --profile staging",
    ),
    "profile show": (
        "tallystick profile show",
        "tallystick profile show staging --output json",
    ),
    "profile delete": (
        "tallystick profile delete staging",
        "tallystick profile delete staging --yes",
    ),
    "completion": (
        'eval "$(tallystick completion bash)"',
        "tallystick completion fish > ~/.config/fish/completions/tallystick.fish",
    ),
}


def format_examples(command: str) -> str | None:
    """Return the end of a command's help, lines that are not to be wrapped; None without examples."""
    examples = EXAMPLES.get(command)
    return None if examples is None else "\n".join(("\b", "Examples:", *(f"  {each}" for each in examples)))
