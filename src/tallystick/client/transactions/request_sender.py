"""Requests of one transactional id to its coordinators, retried until answered or until max.block.ms.

`client.errors.rules` decides what is retried and what an error means; the machine of `state` decides what
follows from an answer.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from tallystick.client.errors import BrokerRefused, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata
from tallystick.client.transactions import requests
from tallystick.client.transactions.modes import (
    KEEP_API_VERSION,
    ClusterCapabilities,
    TxnDescription,
)
from tallystick.client.transactions.state import DueEndTxn
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.txn.add_offsets_to_txn import AddOffsetsToTxnResponse
from tallystick.protocol.messages.txn.add_partitions_to_txn import AddPartitionsToTxnResponse
from tallystick.protocol.messages.txn.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.protocol.messages.txn.txn_offset_commit import TxnOffsetCommitResponse

T = TypeVar("T")
R = TypeVar("R")


class TxnRequestSender:
    """Requests for one transactional id. Errors carry the worst effect of all attempts."""

    def __init__(self, cluster: Cluster, transactional_id: str, limit_ms: int) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._max_block_ms = limit_ms

    @property
    def transaction_version(self) -> int:
        """Finalized `transaction.version`, as far as any broker has reported it."""
        return self._cluster.get_feature_level("transaction.version")

    async def fetch_capabilities(self) -> ClusterCapabilities:
        """Return the capabilities that the coordinator announces."""

        async def attempt() -> ClusterCapabilities:
            node = await self._cluster.find_coordinator("transaction", self.transactional_id)
            versions = await self._cluster.wait_for_versions(node)
            return ClusterCapabilities(
                init_version=versions.find_latest_usable(ApiKey.INIT_PRODUCER_ID) or 0,
                transaction_version=self.transaction_version,
                can_describe=versions.find_latest_usable(ApiKey.DESCRIBE_TRANSACTIONS) is not None,
            )

        return await self._run_with_retries("InitProducerId", attempt)

    async def init_producer_id(
        self, request: InitProducerIdRequest, *, only_if_idle: bool = False
    ) -> tuple[ProducerIdAndEpoch, ProducerIdAndEpoch | None]:
        """Return the client's producer id and epoch, and those of the transaction in doubt, if any.

        Args:
            only_if_idle: nothing is open, as far as this client knows: before each attempt the id is
                described. Kafka aborts what is open whatever epoch a request names; it then answers
                CONCURRENT_TRANSACTIONS, and the next request would erase that it has aborted something.
        Raises: Fenced, with `only_if_idle`, if another client has begun a transaction.
        """
        # KIP-939: these fields exist from version 6 on; a lower version would drop them and abort instead.
        keeps = request.keep_prepared_txn or request.enable_2pc
        version = KEEP_API_VERSION if keeps else None
        tried_at: list[ProducerIdAndEpoch | None] = []

        async def attempt() -> tuple[ProducerIdAndEpoch, ProducerIdAndEpoch | None]:
            if only_if_idle:
                tried_at.append(self._require_idle(await self.describe(), tried_at))
            answer = await self._send_to_coordinator(
                request, InitProducerIdResponse, version=version, max_version=KEEP_API_VERSION - 1
            )
            return requests.parse_init_producer_id(self.transactional_id, answer)

        return await self._run_with_retries("InitProducerId", attempt)

    def _require_idle(
        self, now: TxnDescription | None, tried_at: Collection[ProducerIdAndEpoch | None]
    ) -> ProducerIdAndEpoch | None:
        """Return the identity at which the id may be initialised.

        Args:
            tried_at: the same of earlier attempts.
        """
        if now is None:
            return None
        if now.state == "Ongoing":
            raise build_overtaken_error(self.transactional_id, f"has begun {now.identity}")
        if now.state != "Empty" and set(tried_at) - {now.identity}:
            text = (
                f"has begun a transaction, which InitProducerId may have aborted: {now.state} {now.identity}"
            )
            raise build_overtaken_error(self.transactional_id, text)
        if now.state.startswith("Prepare"):  # markers are on their way
            code = ErrorCode.CONCURRENT_TRANSACTIONS
            raise build_broker_error("InitProducerId", self.transactional_id, code)
        return now.identity

    async def describe(self) -> TxnDescription | None:
        """Return the coordinator's description of the id; None when it knows of no such id."""
        request = DescribeTransactionsRequest(transactional_ids=(self.transactional_id,))

        async def attempt() -> TxnDescription | None:
            answer = await self._send_to_coordinator(request, DescribeTransactionsResponse)
            return requests.parse_description(self.transactional_id, answer)

        return await self._run_with_retries("DescribeTransactions", attempt)

    async def add_partitions(
        self, client: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> None:
        """Add partitions at the coordinator before their first batch.

        Only below transaction version 2: from then on the partition's leader does it (KIP-890).
        """
        request = requests.build_add_partitions(self.transactional_id, client, partitions)

        async def attempt() -> None:
            answer = await self._send_to_coordinator(
                request, AddPartitionsToTxnResponse, max_version=requests.ADD_PARTITIONS_CLIENT_MAX
            )
            requests.check_partitions_added(self.transactional_id, answer)

        await self._run_with_retries("AddPartitionsToTxn", attempt)

    async def add_offsets(self, client: ProducerIdAndEpoch, group_id: str) -> None:
        """Add a group at the coordinator before its first offset. Only below transaction version 2."""
        request = requests.build_add_offsets(self.transactional_id, client, group_id)

        async def attempt() -> None:
            answer = await self._send_to_coordinator(request, AddOffsetsToTxnResponse)
            if answer.error_code:
                raise build_broker_error("AddOffsetsToTxn", self.transactional_id, answer.error_code)

        await self._run_with_retries("AddOffsetsToTxn", attempt)

    async def commit_offsets(
        self,
        client: ProducerIdAndEpoch,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        joining: bool,
    ) -> None:
        """Commit a group's offsets; a retry sends only those that are not committed yet.

        Args:
            joining: TxnOffsetCommit itself adds the group to the transaction (version 2).
        """
        remaining_offsets = dict(offsets)
        api, version = "TxnOffsetCommit", requests.TXN_OFFSETS_JOIN_VERSION

        async def attempt() -> None:
            node = await self._cluster.find_coordinator("group", group.group_id)
            request = requests.build_txn_offset_commit(
                self.transactional_id, client, group, remaining_offsets
            )
            answer = await self._cluster.send(
                node, request, TxnOffsetCommitResponse, max_version=version if joining else version - 1
            )
            codes = requests.parse_error_codes(answer)
            for at in [at for at in remaining_offsets if codes.get(at) == ErrorCode.NONE]:
                del remaining_offsets[at]
            unknown = ErrorCode.UNKNOWN_SERVER_ERROR
            errors = [
                build_broker_error(api, group.group_id, codes.get(at, unknown), str(at))
                for at in remaining_offsets
            ]
            if errors:  # raise an error that a retry does not mend, if there is one
                raise min(errors, key=lambda each: each.remedy.repeats)

        await self._run_with_retries(api, attempt, group.group_id)

    async def end_txn(self, end: DueEndTxn) -> ProducerIdAndEpoch | None:
        """Commit or abort; return the next producer id and epoch if the end bumps them.

        Raises: an error with remedy LOOK_UP has effect UNKNOWN only because of an earlier attempt: this one
            was refused.
        """
        request = requests.build_end_txn(self.transactional_id, end)
        # KIP-890: EndTxn version 5 bumps the epoch and returns it; a transaction is ended as it was begun.
        version = requests.END_TXN_BUMP_VERSION if end.version >= EPOCH_BUMP_VERSION else None

        async def attempt() -> ProducerIdAndEpoch | None:
            answer = await self._send_to_coordinator(
                request, EndTxnResponse, version=version, max_version=requests.END_TXN_BUMP_VERSION - 1
            )
            try:
                return requests.parse_end_txn(self.transactional_id, answer)
            except BrokerRefused as exc:
                if exc.remedy is Remedy.LOOK_UP:
                    raise exc.copy_with(effect=Effect.NONE, remedy=exc.remedy) from None
                raise

        return await self._run_with_retries("EndTxn", attempt)

    async def _send_to_coordinator(
        self, request: object, answer: type[R], *, version: int | None = None, max_version: int | None = None
    ) -> R:
        """Make one attempt at the transaction coordinator; `version` takes precedence over `max_version`."""
        node = await self._cluster.find_coordinator("transaction", self.transactional_id)
        if version is not None:
            return await self._cluster.send(node, request, answer, version=version)
        return await self._cluster.send(node, request, answer, max_version=max_version)

    async def _run_with_retries(self, api: str, attempt: Callable[[], Awaitable[T]], subject: str = "") -> T:
        deadline = self._cluster.start_deadline("max.block.ms", self._max_block_ms)
        return await self._cluster.run_with_retries(api, subject or self.transactional_id, attempt, deadline)


def build_overtaken_error(transactional_id: str, what: str) -> BrokerRefused:
    """Return the error of a client that has found another one at work where nothing fences either."""
    return build_broker_error(
        "InitProducerId",
        transactional_id,
        ErrorCode.PRODUCER_FENCED,
        f"another client of this id {what}; recover it",
    )
