"""`tallystick groups`: consumer groups, their members, offsets and lag, like `kafka-consumer-groups.sh`."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import typer

from tallystick.admin.client import Admin
from tallystick.admin.model import GroupDescription, GroupOffsets, MemberDescription
from tallystick.admin.resets import ShiftBy, plan_reset
from tallystick.admin.start_offsets import (
    FROM_BEGINNING,
    FROM_END,
    AtOffset,
    AtTimestamp,
    StartSpec,
    list_partitions,
)
from tallystick.admin.topics import LATEST
from tallystick.cli.cluster_command import ClusterTarget, confirm, create_app, report_failures
from tallystick.cli.exits import ExitCode, print_error
from tallystick.cli.settings import parse_partitions, parse_time_ms
from tallystick.cli.subjects import choose_name, merge_names, unite_names
from tallystick.cli.tables import Row
from tallystick.client.errors import ClientError
from tallystick.client.offsets import HELD_OFFSET_TEXT, OffsetAndTimestamp
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value

app = create_app("List, describe and delete groups, and move their offsets.")

Group = Annotated[str | None, typer.Argument(metavar="GROUP", show_default=False)]
Groups = Annotated[list[str] | None, typer.Argument(metavar="GROUP", show_default=False)]
GroupOption = Annotated[str | None, typer.Option("--group", help="The same as GROUP.")]
GroupsOption = Annotated[list[str] | None, typer.Option("--group", help="The same as GROUP; repeatable.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TOPICS_OPTION: Final = typer.Option(
    "--topic", metavar="TOPIC[:P,P]", help="All or some partitions; repeatable."
)

_LIST_COLUMNS: Final = ("Group", "Coordinator", "Type", "Protocol", "State")
_DESCRIBE_COLUMNS: Final = (
    "Group", "State", "Topic", "Partition", "CurrentOffset", "LogEndOffset", "Lag", "ConsumerId", "Host",
)  # fmt: skip


@app.command("list")
def list_(
    context: typer.Context,
    state: Annotated[list[str] | None, typer.Option(help="Only in this state; repeatable.")] = None,
) -> None:
    """List the groups, by coordinator."""
    at: ClusterTarget = context.obj
    with at.open_admin() as admin:
        answers = admin.list_groups(states=state or ())
    rows: list[Row] = [
        {
            "Group": each.group_id,
            "Coordinator": each.coordinator,
            "Type": each.type,
            "Protocol": each.protocol_type,
            "State": each.state,
        }
        for some in answers.found.values()
        for each in some
    ]
    at.print_rows(_LIST_COLUMNS, rows, failed=bool(answers.failures))
    raise typer.Exit(report_failures({f"broker {node}": why for node, why in answers.failures.items()}))


@app.command()
def describe(context: typer.Context, groups: Groups = None, *, group: GroupsOption = None) -> None:
    """Show members, offsets and lag.

    Without a GROUP, of all groups.
    """
    at: ClusterTarget = context.obj
    names = unite_names(groups, group)
    failures: dict[str, ClientError] = {}
    with at.open_admin() as admin:
        if not names:
            listed = admin.list_groups()
            names = sorted(each.group_id for some in listed.found.values() for each in some)
            failures |= {f"broker {node}": why for node, why in listed.failures.items()}
        descriptions, offsets = admin.describe_groups(names), admin.describe_group_offsets(names)
        failures |= {**descriptions.failures, **offsets.failures}
        known = [name for name in names if name in descriptions.found and name in offsets.found]
        details = [_DescribedGroup(name, descriptions.found[name], offsets.found[name]) for name in known]
        ends = admin.list_offsets(
            dict.fromkeys(sorted({p for each in details for p in each.partitions}), LATEST)
        )
    failures |= {str(partition): why for partition, why in ends.failures.items()}
    rows = [row for each in details for row in each.format_rows(ends.found)]
    at.print_rows(_DESCRIBE_COLUMNS, rows, failed=bool(failures))
    for each in details:
        for partition in sorted(each.offsets.pending):
            typer.echo(f"{each.name} {partition}: {HELD_OFFSET_TEXT}", err=True)
    is_missing = bool(descriptions.failures or offsets.failures)
    code = report_failures(failures)
    raise typer.Exit(ExitCode.FAILED if is_missing else code)


@app.command()
def delete(
    context: typer.Context, groups: Groups = None, *, group: GroupsOption = None, yes: Yes = False
) -> None:
    """Delete groups without members, and their offsets."""
    at: ClusterTarget = context.obj
    names = merge_names(context, groups, group, "GROUP")
    confirm(f"Delete {', '.join(names)} and what they committed?", yes=yes)
    with at.open_admin() as admin:
        answers = admin.delete_groups(names)
    raise typer.Exit(report_failures(answers.failures) and ExitCode.FAILED)


@app.command()
def reset_offsets(
    context: typer.Context,
    group: Group = None,
    *,
    group_option: GroupOption = None,
    topic: Annotated[list[str] | None, TOPICS_OPTION] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Whatever it has committed.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the last one.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="To this one, within the log.")] = None,
    to_datetime: Annotated[str | None, typer.Option(metavar="TIME", help="As 2026-11-21T12:00:00Z.")] = None,
    shift_by: Annotated[int | None, typer.Option(help="By this many records; back if negative.")] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; by default it is only shown.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it: the default.")] = False,
) -> None:
    """Show the new offsets of a group; --execute commits them.

    The group must have no members. An offset that changes loses its metadata, as with Kafka's tool.
    """
    name = choose_name(context, group, group_option, "GROUP", rest="--topic TOPIC --to-earliest")
    targets: list[StartSpec | ShiftBy] = [
        *([FROM_BEGINNING] if to_earliest else []),
        *([FROM_END] if to_latest else []),
        *([AtOffset(to_offset)] if to_offset is not None else []),
        *([AtTimestamp(parse_time_ms(to_datetime, "--to-datetime"))] if to_datetime is not None else []),
        *([ShiftBy(shift_by)] if shift_by is not None else []),
    ]
    if len(targets) != 1:
        raise typer.BadParameter(
            "give one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        )
    if bool(topic) == all_topics or (execute and dry_run):
        raise typer.BadParameter("give --topic or --all-topics, and not both --execute and --dry-run")
    at: ClusterTarget = context.obj
    failures: dict[str, ClientError] = {}
    with at.open_admin() as admin:
        plan = plan_reset(admin, name, _select_partitions(admin, name, topic), targets[0])
        if execute:
            offsets = {partition: each.target for partition, each in plan.items()}
            answers = admin.alter_group_offsets(name, offsets)
            failures = {str(partition): why for partition, why in answers.failures.items()}
    rows: list[Row] = [
        {
            "Group": name,
            "Topic": partition.topic,
            "Partition": partition.partition,
            "CurrentOffset": None if each.current is None else each.current.offset,
            "NewOffset": each.target.offset,
        }
        for partition, each in sorted(plan.items())
        if str(partition) not in failures
    ]
    columns = ("Group", "Topic", "Partition", "CurrentOffset", "NewOffset")
    at.print_rows(columns, rows, failed=bool(failures))
    if not execute:
        print_error("nothing was changed; use --execute to change it", ExitCode.DONE)
    raise typer.Exit(report_failures(failures) and ExitCode.FAILED)


@app.command()
def delete_offsets(
    context: typer.Context,
    group: Group = None,
    *,
    group_option: GroupOption = None,
    topic: Annotated[list[str], TOPICS_OPTION],
    yes: Yes = False,
) -> None:
    """Delete a group's offsets of topics it does not read."""
    at: ClusterTarget = context.obj
    name = choose_name(context, group, group_option, "GROUP", rest="--topic TOPIC")
    with at.open_admin() as admin:
        partitions = _select_partitions(admin, name, topic)
        confirm(f"Forget offsets of {name} in {', '.join(map(str, partitions))}?", yes=yes)
        answers = admin.delete_group_offsets(name, partitions)
    raise typer.Exit(report_failures({str(k): v for k, v in answers.failures.items()}) and ExitCode.FAILED)


class _DescribedGroup(Value):
    name: str
    description: GroupDescription
    offsets: GroupOffsets

    @property
    def readers(self) -> dict[TopicPartition, MemberDescription]:
        return {each: member for member in self.description.members for each in member.partitions}

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted({*self.offsets.committed, *self.readers, *self.offsets.pending})

    def format_rows(self, ends: Mapping[TopicPartition, OffsetAndTimestamp | None]) -> Iterator[Row]:
        readers = self.readers
        for partition in self.partitions:
            end, offset = ends.get(partition), self.offsets.committed.get(partition)
            reader = readers.get(partition)
            yield {
                "Group": self.name,
                "State": self.description.state,
                "Topic": partition.topic,
                "Partition": partition.partition,
                "CurrentOffset": None if offset is None else offset.offset,
                "LogEndOffset": None if end is None else end.offset,
                "Lag": None if end is None or offset is None else end.offset - offset.offset,
                "ConsumerId": None if reader is None else reader.member_id,
                "Host": None if reader is None else reader.host,
            }


def _select_partitions(admin: Admin, group: str, topics: list[str] | None) -> tuple[TopicPartition, ...]:
    """Return the partitions of the named topics, or all in which the group has committed offsets."""
    if topics is None:
        return tuple(sorted(admin.list_group_offsets(group)))
    numbers_by_topic = parse_partitions(topics, "--topic").items()
    return tuple(
        each for name, numbers in numbers_by_topic for each in list_partitions(admin, [name], numbers)
    )
