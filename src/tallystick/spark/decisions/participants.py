"""Kafka requests on the transactional ids of a prefix. `decide` has the rules for the answers."""

from collections.abc import Collection, Iterable, Mapping

from tallystick.admin.admin_call import gather_answers
from tallystick.admin.model import TransactionDescription
from tallystick.admin.txn.transactions import TransactionAdmin
from tallystick.client.errors import BrokerRefused, ClientError, Fenced, IdExpired, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.transactions.modes import MODE_REFUSALS, Mode, TxnDecision
from tallystick.client.transactions.request_sender import TxnRequestSender
from tallystick.client.transactions.state import DueEndTxn
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest
from tallystick.spark.options.sink_options import TRANSACTION_TIMEOUT_MS, SinkOptions
from tallystick.spark.protocol.committable import Participant
from tallystick.spark.protocol.transactional_ids import format_coordinator_id


class ClusterParticipants:
    """`ports.ParticipantsPort` of one prefix on a cluster, on one event loop.

    The caller closes the cluster.
    """

    def __init__(self, cluster: Cluster, options: SinkOptions, limit_ms: int) -> None:
        """Bind the prefix to the cluster.

        Args:
            limit_ms: the time limit of each request, including its retries.
        """
        self._cluster, self._options, self._limit_ms = cluster, options, limit_ms
        self._coordinator_id = format_coordinator_id(options.prefix)
        self._transactions = TransactionAdmin(cluster, limit_ms)

    async def claim(self) -> tuple[ProducerIdAndEpoch, int]:
        # KIP-98: InitProducerId fences the earlier driver, and succeeds only when its open transaction has
        # ended.
        owner = await self._init_producer_id(self._coordinator_id, self._options.coordinator_timeout_ms, None)
        return owner, self._open_txn_client(self._coordinator_id).transaction_version

    async def reclaim(self, owner: ProducerIdAndEpoch) -> ProducerIdAndEpoch | None:
        # KIP-360: InitProducerId with the current producer id and epoch is fenced if a newer one was issued.
        try:
            return await self._init_producer_id(
                self._coordinator_id, self._options.coordinator_timeout_ms, owner
            )
        except (Fenced, IdExpired):
            return None

    async def owns_prefix(self, owner: ProducerIdAndEpoch) -> bool:
        description = (await self.describe([self._coordinator_id]))[self._coordinator_id]
        return description is not None and description.writer == owner

    async def describe(self, transactional_ids: Iterable[str]) -> Mapping[str, TransactionDescription | None]:
        names = tuple(transactional_ids)
        answers = await self._transactions.describe(names)
        for failure in answers.failures.values():
            code = failure.code if isinstance(failure, BrokerRefused) else None
            # KIP-664: the coordinator has no such id: it expired, or never had a transaction.
            if code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise failure
        return {name: answers.found.get(name) for name in names}

    async def end(
        self, participants: Collection[Participant], transaction_version: int, txn_decision: TxnDecision
    ) -> Mapping[str, ClientError]:
        participants_by_id = {each.transactional_id: each for each in participants}

        async def end_transaction(name: str) -> None:
            # EndTxn under this producer id and epoch alone: it may come from any process, and an id that has
            # been used again refuses it (KIP-890).
            end = DueEndTxn(
                client=participants_by_id[name].identity, decision=txn_decision, version=transaction_version
            )
            await self._open_txn_client(name).end_txn(end)

        return (await gather_answers(participants_by_id, end_transaction)).failures

    async def recover(
        self, participants: Collection[Participant], transaction_version: int, txn_decision: TxnDecision
    ) -> Mapping[str, ClientError]:
        identities = {each.transactional_id: each.identity for each in participants}

        async def recover_transaction(name: str) -> None:
            client, writer = await self._init_keeping_prepared(name)
            if writer != identities[name]:
                # The id has been reused. The transaction that is open now is another one, and stays open.
                why = f"{identities[name]} is no longer what is open: that is {writer}"
                raise build_broker_error("InitProducerId", name, ErrorCode.INVALID_PRODUCER_EPOCH, why)
            await self._open_txn_client(name).end_txn(
                DueEndTxn(client=client, decision=txn_decision, version=transaction_version)
            )

        return (await gather_answers(identities, recover_transaction)).failures

    async def _init_keeping_prepared(self, name: str) -> tuple[ProducerIdAndEpoch, ProducerIdAndEpoch | None]:
        """Initialise the id and keep its open transaction (KIP-939).

        `Producer.complete_transaction` would abort any other transaction, as KIP-939's recipe does. Here that
        may be one that a newer driver has decided on [SPK-28].

        Returns: the new producer id and epoch, and those of the open transaction.
        """
        two_phase = Mode.TWO_PHASE.value in self._options.modes
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=int(
                self._options.client.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
            ),
            enable_2pc=two_phase,
            keep_prepared_txn=True,
        )
        try:
            return await self._open_txn_client(name).init_producer_id(request)
        except BrokerRefused as exc:
            if (Mode.TWO_PHASE, exc.code) not in MODE_REFUSALS or not two_phase:
                raise
            return await self._open_txn_client(name).init_producer_id(replace(request, enable_2pc=False))

    async def list_open_ids(self) -> Collection[str]:
        answers = await self._transactions.list(states=("Ongoing",))
        # If a coordinator does not answer, its orphans stay open until the next batch: no decision has them.
        return {each.transactional_id for transactions in answers.found.values() for each in transactions}

    async def _init_producer_id(
        self, name: str, timeout_ms: int, current: ProducerIdAndEpoch | None
    ) -> ProducerIdAndEpoch:
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1 if current is None else current.producer_id,
            producer_epoch=-1 if current is None else current.epoch,
        )
        client, _ = await self._open_txn_client(name).init_producer_id(request)
        return client

    def _open_txn_client(self, name: str) -> TxnRequestSender:
        return TxnRequestSender(self._cluster, name, self._limit_ms)
