"""`tallystick groups`: who reads what, and how far behind; as `kafka-consumer-groups.sh`."""

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from tallystick.admin.topics import LATEST
from tallystick.cli.connecting import Exit, Target, confirm, incomplete, run, target
from tallystick.cli.tables import Row

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, callback=target)
app.info.help = "List, describe and delete groups."

_LIST: Final = ("Group", "Coordinator", "Type", "Protocol", "State")
_DESCRIBE: Final = (
    "Group", "State", "Topic", "Partition", "CurrentOffset", "LogEndOffset", "Lag", "ConsumerId", "Host",
)  # fmt: skip


@app.command("list")
def list_(
    context: typer.Context,
    state: Annotated[list[str] | None, typer.Option(help="Only in this state; repeatable.")] = None,
) -> None:
    """All groups, by coordinator."""
    at: Target = context.obj
    with at.admin() as admin:
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
    at.show(_LIST, rows)
    raise typer.Exit(incomplete({f"broker {node}": why for node, why in answers.failures.items()}))


@app.command()
def describe(context: typer.Context, group: Annotated[str, typer.Option("--group")]) -> None:
    """Its offsets, how far they are behind the end, and who reads."""
    at: Target = context.obj
    with at.admin() as admin:
        found = admin.describe_groups([group]).one(group)
        committed = admin.list_group_offsets(group)
        readers = {where: member for member in found.members for where in member.partitions}
        partitions = sorted({*committed, *readers})
        ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    rows: list[Row] = []
    for where in partitions:
        end, offset, reader = ends.found.get(where), committed.get(where), readers.get(where)
        rows.append(
            {
                "Group": group,
                "State": found.state,
                "Topic": where.topic,
                "Partition": where.partition,
                "CurrentOffset": None if offset is None else offset.offset,
                "LogEndOffset": None if end is None else end.offset,
                "Lag": None if end is None or offset is None else end.offset - offset.offset,
                "ConsumerId": None if reader is None else reader.member_id,
                "Host": None if reader is None else reader.host,
            }
        )
    at.show(_DESCRIBE, rows)
    raise typer.Exit(incomplete({str(where): why for where, why in ends.failures.items()}))


@app.command()
def delete(
    context: typer.Context,
    group: Annotated[list[str], typer.Option("--group", help="Repeatable.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete groups without members, and their offsets."""
    at: Target = context.obj
    confirm(f"Delete {', '.join(group)} and what they committed?", yes=yes)
    with at.admin() as admin:
        answers = admin.delete_groups(group)
    raise typer.Exit(incomplete(answers.failures) and Exit.FAILED)


def main(words: Sequence[str]) -> int:
    """Run `tallystick groups WORDS`; the exit code."""
    return run(app, "groups", words)
