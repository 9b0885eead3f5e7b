"""The grants that the transactional ids of a prefix need, in one error for all of them.

A refusal names one transactional id. Those of workers have random names, so that to grant it is to be refused
again for the next one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote

from tallystick.client.errors import NotAuthorized
from tallystick.client.transactions.modes import Mode
from tallystick.kernel.codes import ErrorCode
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.errors import MissingRight


@contextmanager
def explain_missing_right(options: SinkOptions) -> Iterator[None]:
    """Name the grants of all the sink's transactional ids where one of them is refused.

    Raises: MissingRight; what else is raised inside.
    """
    try:
        yield
    except NotAuthorized as exc:
        if exc.code != ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise
        raise MissingRight(describe_refusal(options, exc)) from exc


def describe_refusal(options: SinkOptions, refusal: NotAuthorized) -> str:
    """Return the refused right, and the command that grants it."""
    has_two_phase = Mode.TWO_PHASE.value in options.modes
    operations = ["Write", "Describe", *["TwoPhaseCommit"] * has_two_phase]
    switch = " The broker's setting transaction.two.phase.commit.enable=true is needed, too." * has_two_phase
    return (
        f"{refusal.api} {refusal.subject!r}: {ErrorCode(refusal.code).name}. Nothing of this batch was "
        f"decided. The sink has many transactional ids, all of which begin with {options.prefix + '/'!r}; "
        f"grant {', '.join(operations)} on them at once: tallystick acls create --allow-principal User:NAME "
        f"{' '.join(f'--operation {each}' for each in operations)} "
        f"--transactional-id {quote(options.prefix + '/')} --resource-pattern-type prefixed.{switch}"
    )
