"""Feature levels: what ApiVersions says of them, and what UpdateFeatures lets nobody lose."""

import asyncio
import sqlite3
from contextlib import nullcontext
from typing import Any

import pytest
from tests.support.memory_broker import (
    MemoryBroker,
    Turn,
    completed,
    loaded,
    memory_broker,
    memory_disk,
    on_a_loop,
    set_level,
    versions,
)

from harness.sim.machine import InMemoryMetadataStore
from tallystick.broker.authorizer.authorizer import CLUSTER_RESOURCE, Operation
from tallystick.broker.metadata.features import FinalizedFeatures
from tallystick.broker.metadata.store import MetadataUnusable
from tallystick.broker.metadata.worker import BlockingWorker
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster.api_versions import ApiVersionsRequest
from tallystick.protocol.messages.cluster.find_coordinator import FindCoordinatorRequest
from tallystick.protocol.messages.cluster.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tallystick.protocol.messages.cluster.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest

E = ErrorCode
UP, SAFE, UNSAFE = 1, 2, 3


# Whether the broker must end: SQLite may have left the change in its log, or has rolled it back.
STORE_ERRORS = [(sqlite3.SQLITE_IOERR_FSYNC, True), (sqlite3.SQLITE_FULL, False)]


def fail_store(desk: MemoryBroker, method: str, code: int) -> None:
    """Let a method of the metadata store fail with a code of SQLite from now on."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code

    def fail(*_: object) -> None:
        raise error

    setattr(desk.broker.metadata_store, method, fail)


async def shown(desk: MemoryBroker, version: int = 4) -> tuple[list[Any], list[Any], int]:
    answer = await desk.ask(
        ApiVersionsRequest(client_software_name="x", client_software_version="1"), version
    )
    return (
        [(each.name, each.min_version, each.max_version) for each in answer.supported_features],
        [(each.name, each.min_version_level, each.max_version_level) for each in answer.finalized_features],
        answer.finalized_features_epoch,
    )


@versions(ApiKey.API_VERSIONS)
@on_a_loop
async def test_api_versions_tells_the_level(version: int) -> None:
    """KIP-584; a range from 0 on is left out where clients cannot read it (KAFKA-17492)."""
    async with memory_broker() as desk:
        supported = [("transaction.version", 0, 2)] if version >= 4 else []
        finalized = [("transaction.version", 2, 2)] if version >= 3 else []
        assert await shown(desk, version) == (supported, finalized, 0 if version >= 3 else -1)


@on_a_loop
async def test_a_change_is_numbered_and_outlives_the_broker() -> None:
    """[MET-1]"""
    disk = memory_disk()
    async with memory_broker(disk) as desk:
        await loaded(desk)
        assert await set_level(desk, 1) == 0
        assert (await shown(desk))[1:] == ([("transaction.version", 1, 1)], 1)
        assert await set_level(desk, 1, UP) == 0, "where it is already"
        assert (await shown(desk))[2] == 1
    async with memory_broker(disk) as desk:
        assert desk.broker.transaction_version == 1
        await loaded(desk)
        assert await set_level(desk, 0, UNSAFE) == 0
        assert (await shown(desk))[1:] == ([], 2), "0 is a feature that is not there"
        assert await set_level(desk, 2, UP) == 0
    async with memory_broker(disk) as desk:
        assert (await shown(desk))[1:] == ([("transaction.version", 2, 2)], 3)


@pytest.mark.parametrize(
    ("feature", "level", "upgrade_type", "why"),
    [
        ("transaction.version", 3, UP, "levels 0 to 2"),
        ("transaction.version", -1, SAFE, "levels 0 to 2"),
        ("transaction.version", 1, UP, "allows no downgrade"),
        ("transaction.version", 1, 0, "none that this broker knows"),
        ("transaction.version", 1, 9, "none that this broker knows"),
        ("metadata.version", 7, UP, "does not have the feature"),
    ],
)
@on_a_loop
async def test_what_is_no_update(feature: str, level: int, upgrade_type: int, why: str) -> None:
    async with memory_broker() as desk:
        await loaded(desk)
        good = FeatureUpdateKey(feature="transaction.version", max_version_level=2)
        wrong = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=upgrade_type)
        for version in (1, 2):
            answer = await desk.ask(UpdateFeaturesRequest(feature_updates=(good, wrong)), version)
            assert answer.error_code == E.INVALID_UPDATE_VERSION
            assert why in answer.error_message
            assert answer.results == ()
        assert await shown(desk) == (
            [("transaction.version", 0, 2)],
            [("transaction.version", 2, 2)],
            0,
        )


@on_a_loop
async def test_a_downgrade_does_not_go_up() -> None:
    async with memory_broker() as desk:
        await loaded(desk)
        assert await set_level(desk, 1) == 0
        assert await set_level(desk, 2, SAFE) == E.INVALID_UPDATE_VERSION


@versions(ApiKey.UPDATE_FEATURES)
@on_a_loop
async def test_update_features(version: int) -> None:
    """Results by feature up to version 1; version 0 allows a downgrade by a flag and has no dry run."""
    async with memory_broker() as desk:
        await loaded(desk)
        kind = {"allow_downgrade": True} if version == 0 else {"upgrade_type": SAFE}
        update = FeatureUpdateKey(feature="transaction.version", max_version_level=1, **kind)
        desk.deny((Operation.ALTER, CLUSTER_RESOURCE))
        answer = await desk.ask(UpdateFeaturesRequest(feature_updates=(update,)), version)
        assert answer.error_code == E.CLUSTER_AUTHORIZATION_FAILED
        desk.deny()
        for validate_only in (True, False) if version >= 1 else (False,):
            request = UpdateFeaturesRequest(feature_updates=(update,), validate_only=validate_only)
            answer = await desk.ask(request, version)
            assert answer.error_code == 0
            named = ["transaction.version"] if version <= 1 else []
            assert [each.feature for each in answer.results] == named
            assert all(each.error_code == 0 for each in answer.results)
            assert desk.broker.transaction_version == (2 if validate_only else 1)


# ---- what lowering would lose


async def prepared(desk: MemoryBroker, *, keep: bool, two_phase: bool) -> tuple[int, int]:
    """A transaction in doubt; the pair that may end it."""
    await loaded(desk)
    await desk.make_topic("orders")
    await desk.ask(FindCoordinatorRequest(coordinator_keys=("t",), key_type=1), 4)
    claim = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1_000, enable_2pc=two_phase)
    pair = await desk.ask(claim, 6)
    written = AddPartitionsToTxnTransaction(
        transactional_id="t",
        producer_id=pair.producer_id,
        producer_epoch=pair.producer_epoch,
        topics=(AddPartitionsToTxnTopic(name="orders", partitions=(0,)),),
    )
    await desk.ask(AddPartitionsToTxnRequest(transactions=(written,)), 5)
    if keep:
        request = InitProducerIdRequest(
            transactional_id="t", transaction_timeout_ms=1_000, keep_prepared_txn=True, enable_2pc=two_phase
        )
        pair = await desk.ask(request, 6)
    return pair.producer_id, pair.producer_epoch


@pytest.mark.parametrize(("keep", "two_phase"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("upgrade_type", [SAFE, UNSAFE])
@on_a_loop
async def test_lowering_is_refused_while_a_transaction_needs_the_level(
    keep: bool, two_phase: bool, upgrade_type: int
) -> None:
    """A next pair, or no timeout: version 0 of a record has no place for the one, and below 2 a token names
    several transactions."""
    async with memory_broker() as desk:
        pair = await prepared(desk, keep=keep, two_phase=two_phase)
        for check in (True, False):
            assert await set_level(desk, 1, upgrade_type, check=check) == E.INVALID_UPDATE_VERSION
        assert desk.broker.transaction_version == 2
        ended = EndTxnRequest(
            transactional_id="t", producer_id=pair[0], producer_epoch=pair[1], committed=True
        )
        assert (await desk.ask(ended, 5)).error_code == 0
        await completed(desk)
        # An id without a timeout keeps that promise until its client says otherwise.
        assert await set_level(desk, 1, upgrade_type) == (E.INVALID_UPDATE_VERSION if two_phase else 0)
        plain = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1_000)
        assert (await desk.ask(plain, 5)).error_code == 0
        assert await set_level(desk, 1, upgrade_type) == 0


@on_a_loop
async def test_requests_wait_while_the_level_goes_down() -> None:
    """What is asked for meanwhile waits, and is decided under the new level."""
    async with memory_broker() as desk:
        await prepared(desk, keep=False, two_phase=False)
        lowering = asyncio.ensure_future(set_level(desk, 1))
        await Turn()  # it has begun, and waits for the metadata
        keep = InitProducerIdRequest(
            transactional_id="t", transaction_timeout_ms=1_000, keep_prepared_txn=True
        )
        kept = asyncio.ensure_future(desk.ask(keep, 6))
        assert await lowering == 0
        assert (await kept).error_code == E.UNSUPPORTED_VERSION


@on_a_loop
async def test_lowering_sees_what_is_on_its_way_to_the_disk() -> None:
    """Under `ack` an id may have begun two-phase commit and not be told yet: it counts."""
    async with memory_broker(flush_policy="ack") as desk:
        await prepared(desk, keep=False, two_phase=False)
        keep = InitProducerIdRequest(
            transactional_id="t", transaction_timeout_ms=1_000, keep_prepared_txn=True
        )
        kept = asyncio.ensure_future(desk.ask(keep, 6))
        await Turn()
        assert not kept.done()
        assert await set_level(desk, 1) == E.INVALID_UPDATE_VERSION
        assert (await kept).error_code == 0


def test_a_level_of_a_newer_version_is_not_guessed_at() -> None:
    def fail(exc: Exception) -> None:
        raise AssertionError(exc)

    store, worker = InMemoryMetadataStore("c"), BlockingWorker()
    store.set_features(7, {"transaction.version": 3})
    with pytest.raises(MetadataUnusable, match="finalized at level 3"):
        FinalizedFeatures(store, worker, lambda level: nullcontext(None), fail)
    worker.close()


# ---- a disk that fails


@pytest.mark.parametrize(("code", "ends"), STORE_ERRORS)
def test_a_level_that_may_have_been_stored_ends_the_broker(code: int, ends: bool) -> None:
    """[MET-1]"""

    async def scenario() -> None:
        async with memory_broker() as desk:
            await loaded(desk)
            fail_store(desk, "set_features", code)
            assert await set_level(desk, 1) == E.KAFKA_STORAGE_ERROR
            assert desk.broker.transaction_version == 2
            assert (desk.broker.failure is not None) == ends

    asyncio.run(scenario())


@pytest.mark.parametrize(("code", "ends"), STORE_ERRORS)
def test_a_setting_that_may_have_been_stored_ends_the_broker(code: int, ends: bool) -> None:
    """[MET-1]"""

    async def scenario() -> None:
        async with memory_broker() as desk:
            fail_store(desk, "set_broker_config", code)
            config = AlterableConfig(name="log.retention.ms", config_operation=0, value="1000")
            named = AlterConfigsResource(resource_type=4, resource_name="", configs=(config,))
            request = IncrementalAlterConfigsRequest(resources=(named,), validate_only=False)
            answer = await desk.ask(request, 1)
            assert answer.responses[0].error_code == E.KAFKA_STORAGE_ERROR
            assert not desk.broker.dynamic_configs
            assert (desk.broker.failure is not None) == ends

    asyncio.run(scenario())
