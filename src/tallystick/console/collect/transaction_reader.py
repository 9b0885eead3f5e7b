"""Reads the open transactions, and describes the ids that stores and decisions name.

A named id that is not open is described again as soon as it has been open since, or its row has changed: an
older description with a newer row would look like a database and a cluster that contradict each other.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from tallystick.admin.aio import Admin
from tallystick.admin.model import TransactionDescription
from tallystick.client.errors import ClientError, IdExpired
from tallystick.console.collect.failures import describe_failure, describe_failures, limit_sentences
from tallystick.console.model.snapshot import PartStatus, PrefixFacts, StoreFacts, TransactionFacts
from tallystick.kernel.clock import Clock
from tallystick.kernel.value import Value


class TransactionReader:
    """Reads over one Admin, which its owner closes."""

    def __init__(
        self,
        admin: Admin,
        clock: Clock,
        *,
        hanging_limit_ms: int,
        named_max: int,
        list_named: Callable[[], Mapping[str, object]],
    ) -> None:
        """Read over `admin`.

        Args:
            named_max: so many ids that are not open are described in one reading.
            list_named: returns the ids that are named, with what names them.
        """
        self._admin, self._clock = admin, clock
        self._hanging_limit_ms, self._named_max = hanging_limit_ms, named_max
        self._list_named = list_named
        self._opened = TransactionFacts()
        self._described: dict[str, DescribedId] = {}
        self._named_failures: tuple[str, ...] = ()
        self._id_count = 0
        self.cluster_id: str | None = None
        """Of the cluster that the last reading was about: another one may answer at the same address."""

    @property
    def facts(self) -> TransactionFacts:
        """The last reading: the open transactions together with the other ids."""
        opened, named = self._opened, self._list_named()
        others = {
            name: each
            for name, each in self._described.items()
            if name not in opened.descriptions and is_current(named, name, each)
        }
        return TransactionFacts(
            status=PartStatus(failures=limit_sentences((*opened.status.failures, *self._named_failures))),
            descriptions={
                **{name: each.description for name, each in others.items() if each.description is not None},
                **opened.descriptions,
            },
            unknown_ids=frozenset(name for name, each in others.items() if not each.is_known),
            cases=opened.cases,
            id_count=self._id_count,
        )

    async def read_open(self) -> TransactionFacts:
        """Read and assess every open transaction, and describe named ids that have just ended."""
        report = await self._admin.describe_open_transactions(limit_ms=self._hanging_limit_ms)
        failures = describe_failures(report.failures)
        if not report.complete and not failures:
            failures = ("coordinators moved while they were asked: the next reading decides",)
        for name in self._opened.descriptions.keys() - report.descriptions.keys():
            self._described.pop(name, None)
        cluster_id = (await self._admin.describe_cluster()).cluster_id
        if cluster_id != self.cluster_id:
            self._described.clear()
        self.cluster_id = cluster_id
        self._opened = TransactionFacts(
            status=PartStatus(failures=failures), descriptions=report.descriptions, cases=report.cases
        )
        await self.describe_named(only_changed=True)
        return self.facts

    async def count_ids(self) -> None:
        """Count the ids that the coordinators know. Raises: ClientError if no broker answers."""
        listed = await self._admin.list_transactions()
        if listed.complete:
            self._id_count = sum(len(each) for each in listed.found.values())

    async def describe_named(self, *, only_changed: bool) -> None:
        """Describe named ids that are not open. Failures are in `facts`."""
        named = self._list_named()
        self._described = {name: each for name, each in self._described.items() if name in named}
        chosen = choose_ids(
            named,
            self._opened.descriptions,
            self._described,
            count_max=self._named_max,
            only_changed=only_changed,
        )
        if not chosen:
            return
        now_ms = self._clock.now_ms()
        try:
            answers = await self._admin.describe_transactions(chosen)
        except ClientError as exc:
            self._named_failures = (f"named transactions: {describe_failure(exc)}",)
            return
        refused: dict[str, ClientError] = {}
        for name in chosen:
            failure = answers.failures.get(name)
            self._described[name] = DescribedId(
                evidence=named[name],
                description=answers.found.get(name),
                is_known=not isinstance(failure, IdExpired),
                at_ms=now_ms,
            )
            if failure is not None and not isinstance(failure, IdExpired):
                refused[name] = failure
        self._named_failures = describe_failures(refused)


class DescribedId(Value, kw_only=True):
    """A named id as it was described last.

    evidence     what named it then
    description  None if no coordinator knows the id, or if it may not be described
    is_known     False if its coordinator does not know it
    """

    evidence: object
    description: TransactionDescription | None
    is_known: bool
    at_ms: int


def list_named_ids(stores: Iterable[StoreFacts], prefixes: Iterable[PrefixFacts]) -> Mapping[str, object]:
    """Return the ids whose transactions may have to be finished, each with what names it.

    Settled rows come last: nothing of them is expected, but a database that was restored to an older state
    has a row that is settled and behind the cluster.
    """
    named: dict[str, object] = {}
    rows = [(name, row) for store in stores for name, row in store.rows.items() if row.state]
    for name, row in sorted(rows, key=lambda each: each[1].settled):
        named[name] = (row.state, row.completing)
    for each in prefixes:
        if each.decision is not None and not each.is_complete:
            for participant in each.decision.participants:
                named[participant.transactional_id] = each.decision.nonce
    return named


def choose_ids(
    named: Mapping[str, object],
    open_ids: Collection[str],
    described: Mapping[str, DescribedId],
    *,
    count_max: int,
    only_changed: bool,
) -> tuple[str, ...]:
    """Choose the ids to describe now; those in an open state are described with the open transactions.

    Args:
        only_changed: only ids that were not described since what names them changed.
    """

    def rank(name: str) -> tuple[bool, int]:
        last = described.get(name)
        return is_current(named, name, last), 0 if last is None else last.at_ms

    wanted = (name for name in named if name not in open_ids)
    if only_changed:
        wanted = (name for name in wanted if not is_current(named, name, described.get(name)))
    return tuple(sorted(wanted, key=rank)[:count_max])


def is_current(named: Mapping[str, object], name: str, last: DescribedId | None) -> bool:
    """Return whether an id was described since what names it changed."""
    return last is not None and last.evidence == named.get(name)
