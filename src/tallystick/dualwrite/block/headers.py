"""The headers of a record of an open transaction, by which a recovery recognises the trace it finishes.

A crashed writer leaves no trace context anywhere but in the records of its open transaction: the row and the
transaction log have no room for one, and need none, since the records are there for as long as there is
anything to finish. Reading one takes three requests, and they are made only while a tracer is set. What
cannot be read (no right to read the topic, a log that is gone) costs the link, never the recovery.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from tallystick.admin.aio import Admin
from tallystick.admin.model import TransactionDescription
from tallystick.client.blocking.thread import engine_thread
from tallystick.client.consumer.engine import ConsumerEngine
from tallystick.client.settings.config import ConsumerConfig, is_client_setting
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.records import Headers

_log = logging.getLogger("tallystick.dualwrite")

PARTITIONS_MAX: Final = 8
"""Number of partitions whose first record is looked at. Any one with headers is enough."""
_LIMIT_S: Final = 10.0
_POLL_MS: Final = 2_000


async def find_open_headers_async(config: Mapping[str, object], transactional_id: str) -> Headers:
    """Return the headers of the first record of the open transaction of an id; none if it cannot be read.

    Args:
        config: settings of an administration client of its cluster.
    """
    try:
        async with asyncio.timeout(_LIMIT_S):
            return await _find(config, transactional_id)
    except Exception as exc:  # whatever it is, it must not end a recovery
        _log.info("%s: the trace of its open transaction is not linked: %s", transactional_id, exc)
        return ()


def find_open_headers(config: Mapping[str, object], transactional_id: str) -> Headers:
    """Do the same for a blocking writer."""
    try:
        coroutine = find_open_headers_async(config, transactional_id)
        return engine_thread().run(coroutine, _LIMIT_S, "find the trace of a transaction")
    except Exception as exc:
        _log.info("%s: the trace of its open transaction is not linked: %s", transactional_id, exc)
        return ()


async def _find(config: Mapping[str, object], transactional_id: str) -> Headers:
    async with Admin(config) as admin:
        txn = (await admin.describe_transactions([transactional_id])).one(transactional_id)
        partitions = sorted(txn.partitions)[:PARTITIONS_MAX]
        producers = await admin.describe_producers(partitions)
    begins = {
        at: each.txn_start_offset
        for at, states in producers.found.items()
        for each in states
        if each.identity == txn.writer and each.txn_start_offset is not None
    }
    return await _read_headers(config, txn, begins)


async def _read_headers(
    config: Mapping[str, object], txn: TransactionDescription, begins: Mapping[TopicPartition, int]
) -> Headers:
    settings = {name: value for name, value in config.items() if is_client_setting(name)}
    settings |= {"isolation.level": "read_uncommitted", "enable.auto.commit": "false"}
    consumer = ConsumerEngine(ConsumerConfig.parse(settings))
    try:
        for at, offset in begins.items():
            consumer.assign([at])
            consumer.positions.seek(at, offset)
            records = await consumer.poll(_POLL_MS, 1)
            # The record at the very offset where the transaction begins is its own; the next may not be.
            headers = _get_headers(each.headers for each in records if each.offset == offset)
            if headers:
                return headers
    finally:
        await consumer.close(0)
    return ()


def _get_headers(candidates: Iterable[Headers]) -> Headers:
    return next(iter(candidates), ())
