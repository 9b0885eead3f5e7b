"""`tallystick topics`: topics of any Kafka cluster, like `kafka-topics.sh`."""

from typing import Annotated, Final

import typer

from tallystick.admin.start_offsets import list_partitions
from tallystick.admin.topics import NewTopic
from tallystick.cli.cluster_command import ClusterTarget, confirm, create_app, report_failures
from tallystick.cli.exits import ExitCode
from tallystick.cli.settings import parse_named_values, parse_partitions
from tallystick.cli.subjects import choose_name, merge_names, unite_names
from tallystick.cli.tables import Row
from tallystick.kernel.ids import INT16_MAX, INT32_MAX

app = create_app("List, describe, create, grow and delete topics, and the records in them.")

_LIST_COLUMNS: Final = ("Topic", "Partitions", "ReplicationFactor", "Internal")
_DESCRIBE_COLUMNS: Final = ("Topic", "Partition", "Leader", "Replicas", "Isr")

Topics = Annotated[list[str] | None, typer.Argument(metavar="TOPIC", show_default=False)]
TopicOption = Annotated[list[str] | None, typer.Option("--topic", help="The same as TOPIC; repeatable.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_(
    context: typer.Context,
    internal: Annotated[bool, typer.Option("--internal", help="Kafka's own, too.")] = False,
) -> None:
    """List all topics."""
    at: ClusterTarget = context.obj
    with at.open_admin() as admin:
        topics = admin.list_topics(internal=internal)
    rows: list[Row] = [
        {
            "Topic": name,
            "Partitions": len(topic.partitions),
            "ReplicationFactor": max((len(p.replicas) for p in topic.partitions.values()), default=0),
            "Internal": topic.is_internal,
        }
        for name, topic in sorted(topics.items())
    ]
    at.print_rows(_LIST_COLUMNS, rows)


@app.command()
def describe(context: typer.Context, topics: Topics = None, topic: TopicOption = None) -> None:
    """Show partitions, their leaders and replicas.

    Without a TOPIC, of all topics but Kafka's own.
    """
    at: ClusterTarget = context.obj
    names = unite_names(topics, topic)
    with at.open_admin() as admin:
        answers = admin.describe_topics(names or sorted(admin.list_topics()))
    rows: list[Row] = [
        {
            "Topic": name,
            "Partition": index,
            "Leader": part.leader,
            "Replicas": list(part.replicas),
            "Isr": list(part.isr),
        }
        for name, description in answers.found.items()
        for index, part in sorted(description.partitions.items())
    ]
    at.print_rows(_DESCRIBE_COLUMNS, rows, failed=bool(answers.failures))
    raise typer.Exit(report_failures(answers.failures) and ExitCode.FAILED)


@app.command()
def create(
    context: typer.Context,
    topics: Topics = None,
    *,
    topic: TopicOption = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=INT32_MAX, help="The broker's default without it.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, max=INT16_MAX, help="The broker's default without it.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of it; repeatable.")
    ] = None,
) -> None:
    """Create topics."""
    at: ClusterTarget = context.obj
    names = merge_names(context, topics, topic, "TOPIC")
    settings = parse_named_values(config or (), "--config")
    new_topics = [
        NewTopic(name=name, partitions=partitions, replicas=replication_factor, config=settings)
        for name in names
    ]
    with at.open_admin() as admin:
        answers = admin.create_topics(new_topics)
    rows: list[Row] = [
        {"Topic": created.name, "Partitions": created.partitions, "ReplicationFactor": created.replicas}
        for created in answers.found.values()
    ]
    at.print_rows(_LIST_COLUMNS[:3], rows, failed=bool(answers.failures))
    raise typer.Exit(report_failures(answers.failures) and ExitCode.FAILED)


@app.command()
def alter(
    context: typer.Context,
    topics: Topics = None,
    *,
    topic: TopicOption = None,
    partitions: Annotated[int, typer.Option(min=1, max=INT32_MAX, help="In all.")],
) -> None:
    """Raise the number of partitions of topics."""
    at: ClusterTarget = context.obj
    names = merge_names(context, topics, topic, "TOPIC")
    with at.open_admin() as admin:
        answers = admin.create_partitions(dict.fromkeys(names, partitions))
    raise typer.Exit(report_failures(answers.failures) and ExitCode.FAILED)


@app.command()
def delete(
    context: typer.Context, topics: Topics = None, *, topic: TopicOption = None, yes: Yes = False
) -> None:
    """Delete topics and all their records."""
    at: ClusterTarget = context.obj
    names = merge_names(context, topics, topic, "TOPIC")
    confirm(f"Delete {', '.join(names)} and every record in it?", yes=yes)
    with at.open_admin() as admin:
        answers = admin.delete_topics(names)
    raise typer.Exit(report_failures(answers.failures) and ExitCode.FAILED)


@app.command()
def delete_records(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC[:P,P]", show_default=False)] = None,
    *,
    topic_option: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC[:P,P]", help="The same as TOPIC[:P,P].")
    ] = None,
    before_offset: Annotated[
        int,
        typer.Option("--before-offset", "--offset", min=-1, help="The first offset to keep; -1 keeps none."),
    ],
    yes: Yes = False,
) -> None:
    """Delete the records before an offset, for good.

    In all partitions of a topic, or in those behind the colon.
    """
    at: ClusterTarget = context.obj
    chosen = choose_name(context, topic, topic_option, "TOPIC[:P,P]", rest="--before-offset OFFSET")
    ((name, numbers),) = parse_partitions([chosen], "topic").items()
    with at.open_admin() as admin:
        partitions = list_partitions(admin, [name], numbers)
        records = "every record" if before_offset < 0 else f"what is before offset {before_offset}"
        confirm(f"Delete {records} in {', '.join(map(str, partitions))}?", yes=yes)
        before = dict.fromkeys(partitions, None if before_offset < 0 else before_offset)
        answers = admin.delete_records(before)
    rows: list[Row] = [
        {"Topic": each.topic, "Partition": each.partition, "FirstOffset": first}
        for each, first in sorted(answers.found.items())
    ]
    at.print_rows(("Topic", "Partition", "FirstOffset"), rows, failed=bool(answers.failures))
    raise typer.Exit(report_failures({str(k): v for k, v in answers.failures.items()}) and ExitCode.FAILED)
