"""What a console in a browser is told beyond its snapshots: histories, records, readings of actions."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.console_facts import NOW_MS, describe, make_row, make_snapshot, make_store, pair
from tests.support.console_site import Site, serve_site
from tests.support.console_worlds import SERVERS, SHOP, make_shop

from tallystick.console.actions.config import ActionConfig
from tallystick.console.actions.readings import Reading, TransactionReading
from tallystick.console.actions.request import ActionRequest
from tallystick.console.actions.results import report_done
from tallystick.console.actions.service import ActionService
from tallystick.console.lookup.history import HistorySource, IdHistory
from tallystick.console.lookup.record_page import BrowsedRecord, RecordPage, RecordQuery, RecordVerdict, clip
from tallystick.kernel.clock import Clock
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.transaction_history import TransactionTransition, TransitionKind

WRITER = pair(4012, 17)


class ShopAnswers:
    """Tells the same history of every id, and the same records of every partition."""

    async def read_history(self, transactional_id: str) -> IdHistory:
        steps = (
            (TransitionKind.INITIALIZED, "Empty", 0, 260_000),
            (TransitionKind.BEGUN, "Ongoing", 1, 240_000),
        )
        transitions = tuple(
            TransactionTransition(
                transactional_id=transactional_id,
                kind=kind,
                at_ms=NOW_MS - age_ms,
                state=state,
                producer=WRITER,
                partition_count=count,
            )
            for kind, state, count, age_ms in steps
        )
        return IdHistory(source=HistorySource.BROKER, transitions=transitions)

    async def browse_records(self, query: RecordQuery) -> RecordPage:
        open_record = BrowsedRecord(
            offset=8_655_093,
            timestamp_ms=NOW_MS - 240_000,
            is_append_time=False,
            verdict=RecordVerdict.OPEN,
            is_held_back=True,
            producer=WRITER,
            key=clip(b"order-77120"),
            value=clip(b'{"order":77120,"paid":"19.90","note":"' + b"x" * 600 + b'"}'),
            headers=(("trace", clip(b"00-4bf92f3577b34da6")),),
            header_count=1,
        )
        marker = BrowsedRecord(
            offset=8_655_092,
            timestamp_ms=NOW_MS - 300_000,
            is_append_time=False,
            verdict=RecordVerdict.CONTROL,
            marker="COMMIT",
            coordinator_epoch=7,
            producer=WRITER,
        )
        return RecordPage(
            partition=query.partition,
            first=8_655_092,
            next_offset=8_655_094,
            start=1_198_207,
            last_stable=8_655_093,
            end=8_671_540,
            records=(marker, open_record),
        )

    async def download(self, at: TopicPartition, offset: int, *, is_key: bool) -> bytes | None:
        return b"order-77120"


class ShopReadings:
    """What is true of payments-1 whenever an action asks: its database has committed, its writer is gone."""

    async def read(self, request: ActionRequest) -> Reading:
        return TransactionReading(
            snapshot=make_snapshot(
                describe("payments-1", writer=WRITER, age_ms=240_000),
                stores=[make_store(make_row("payments-1", WRITER), name=SHOP)],
            ),
            transactional_id="payments-1",
        )

    async def close(self) -> None:
        pass


@contextmanager
def serve_shop() -> Iterator[Site]:
    """Serve the console over the shop, with actions allowed, while the context is open."""
    site = Site(lookups=ShopAnswers(), make_action_service=make_action_service)
    site.publish_settled(make_shop())
    site.feed.note("payments-1", "committed it in Kafka", NOW_MS)
    with serve_site(site):
        yield site


def make_action_service(clock: Clock) -> ActionService:
    """Return a service whose actions succeed and change nothing."""
    settings = {"bootstrap.servers": SERVERS}
    config = ActionConfig(admin=settings, producer=settings, audit_log=None, run_limit_ms=60_000)
    return ActionService(
        config,
        clock=clock,
        reader=ShopReadings(),
        act=lambda *_: report_done("committed it in Kafka"),
    )
