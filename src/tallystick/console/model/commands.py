"""The commands of `tallystick` that show or mend what a page shows, ready to be pasted. Pure.

A store is named by its URL without the password, as pages name it: its user adds the password.
"""

from collections.abc import Iterable

from tallystick.console.model.escaped import quote_words
from tallystick.kernel.ids import TopicPartition
from tallystick.spark.options.option_table import DECISIONS_TOPIC
from tallystick.spark.protocol.transactional_ids import DATABASE_SUFFIX


def format_command(bootstrap_servers: str, group: str, verb: str, *options: str) -> str:
    """Return the command line of a subcommand, quoted for a shell, with every character visible."""
    words = ["tallystick", group, verb, "--bootstrap-server", bootstrap_servers, *options]
    return quote_words(words)


def describe_command(bootstrap_servers: str, transactional_id: str) -> str:
    return format_command(
        bootstrap_servers, "transactions", "describe", "--transactional-id", transactional_id
    )


def find_hanging_command(bootstrap_servers: str) -> str:
    return format_command(bootstrap_servers, "transactions", "find-hanging")


def abort_command(bootstrap_servers: str, partition: TopicPartition, start_offset: int) -> str:
    where = ("--topic", partition.topic, "--partition", str(partition.partition))
    return format_command(
        bootstrap_servers, "transactions", "abort", *where, "--start-offset", str(start_offset)
    )


def describe_producers_command(bootstrap_servers: str, partition: TopicPartition) -> str:
    where = ("--topic", partition.topic, "--partition", str(partition.partition))
    return format_command(bootstrap_servers, "transactions", "describe-producers", *where)


def force_terminate_command(bootstrap_servers: str, transactional_id: str) -> str:
    return format_command(
        bootstrap_servers, "transactions", "force-terminate", "--transactional-id", transactional_id
    )


def complete_command(bootstrap_servers: str, transactional_id: str, state: str) -> str:
    return format_command(bootstrap_servers, "transactions", "complete", transactional_id, state)


def resolve_store_command(bootstrap_servers: str, store: str, *transactional_ids: str) -> str:
    ids = [word for name in transactional_ids for word in ("--transactional-id", name)]
    return format_command(bootstrap_servers, "transactions", "resolve", "--store", store, *ids)


def accept_mixed_command(bootstrap_servers: str, store: str, transactional_id: str) -> str:
    """Return the command that shows what a broken transaction has lost, and asks whether to accept it."""
    return f"{resolve_store_command(bootstrap_servers, store, transactional_id)} --accept-mixed"


def resolve_prefix_command(bootstrap_servers: str, prefix: str, *, store: str = "", topic: str = "") -> str:
    """Return the command that finishes what a Spark query left.

    It says where the query's decisions are: elsewhere the command would find none, and abort what is decided.

    Args:
        store: the database of its decisions, if one has them.
        topic: the topic of its decisions, if one has them.
    """
    where: tuple[str, ...] = ()
    if store:
        where = ("--store", store)
    elif topic not in ("", DECISIONS_TOPIC):
        where = ("--decisions", topic)
    return format_command(bootstrap_servers, "transactions", "resolve", "--prefix", prefix, *where)


def resolve_source_command(bootstrap_servers: str, prefix: str, source: str) -> str:
    """Return the same command for a prefix as its transactional ids have it.

    Args:
        source: where its decisions are, as `PrefixFacts` has it.
    """
    plain = prefix.removesuffix(DATABASE_SUFFIX)
    if plain != prefix:
        return resolve_prefix_command(bootstrap_servers, plain, store=source)
    return resolve_prefix_command(bootstrap_servers, plain, topic=source)


def describe_group_command(bootstrap_servers: str, group_id: str) -> str:
    return format_command(bootstrap_servers, "groups", "describe", "--group", group_id)


def reset_offsets_command(bootstrap_servers: str, group_id: str, *options: str) -> str:
    """Return the command that moves a group's offsets; without `--execute` it would only show them."""
    return format_command(
        bootstrap_servers, "groups", "reset-offsets", "--group", group_id, *options, "--execute"
    )


def retention_command(bootstrap_servers: str, topic: str) -> str:
    """Return the command that keeps less of a topic; its BYTES, of each partition, are for the operator."""
    which = ("--entity-type", "topics", "--entity-name", topic)
    return format_command(
        bootstrap_servers, "configs", "alter", *which, "--add-config", "retention.bytes=BYTES"
    )


def doctor_command(bootstrap_servers: str) -> str:
    return quote_words(["tallystick", "doctor", "--bootstrap-server", bootstrap_servers])


def console_command(bootstrap_servers: str, stores: Iterable[str]) -> str:
    """Return the command that starts the console in a browser."""
    words = ["tallystick", "console", "--bootstrap-server", bootstrap_servers]
    return quote_words([*words, *(word for store in stores for word in ("--store", store))])
