"""Initialisation of a transactional id: which mode is possible, and what InitProducerId returned.

Recovery describes a transactional id before it initialises it, because InitProducerId erases the evidence of
how the last transaction ended (`modes`). Init first asks to keep a prepared transaction, even when nothing is
to be kept: this proves the mode before anything relies on it. A transaction it finds open is then aborted by
a second InitProducerId without keep.
"""

import logging
from collections.abc import Sequence

from tallystick.client.errors import BrokerRefused, InvalidTxnState, NotSupported, build_broker_error
from tallystick.client.settings.config import ProducerConfig
from tallystick.client.transactions.modes import (
    MODE_REFUSALS,
    ClusterCapabilities,
    Mode,
    TxnDescription,
    choose_mode,
    list_modes,
)
from tallystick.client.transactions.request_sender import TxnRequestSender
from tallystick.client.transactions.requests import INIT_EPOCH_BUMP_VERSION
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch
from tallystick.kernel.value import Value, replace
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest

_log = logging.getLogger("tallystick.client")


class EarlierDescription(Value):
    """A description from before InitProducerId; None if the coordinator knew of no such id."""

    description: TxnDescription | None


class InitializedTxnId(Value, kw_only=True):
    """The transactional id was initialised: an earlier client is fenced.

    mode           mechanism that holds a prepared transaction; None: nothing may be prepared
    client         producer id and epoch that sign from now on
    kept_identity  producer id and epoch of the transaction in doubt, if any
    version        transaction version of the next transaction
    earlier        how the id was described before; None if the coordinator was not asked
    """

    mode: Mode | None
    client: ProducerIdAndEpoch
    kept_identity: ProducerIdAndEpoch | None = None
    version: int
    earlier: EarlierDescription | None = None


class DescribedTxnId(Value, kw_only=True):
    """The transactional id was only described: an earlier client is not fenced yet.

    mode    what can be told of it before InitProducerId
    writer  producer id and epoch of the transaction in doubt, if any
    """

    mode: Mode
    writer: ProducerIdAndEpoch | None
    version: int


class TxnInitializer:
    """Initialises one transactional id, in the strongest listed mode that is possible [CLI-40]."""

    def __init__(self, config: ProducerConfig, requests: TxnRequestSender) -> None:
        self._modes = list_modes(config.modes)
        self._timeout_ms = config.transaction_timeout_ms
        self._requests = requests

    async def initialize(
        self, *, keep: bool, former: ProducerIdAndEpoch | None, only_if_idle: bool = False
    ) -> InitializedTxnId | DescribedTxnId:
        """Find the mode and initialise.

        Args:
            keep: leave an open transaction as it is, for a decision.
            only_if_idle: in a mode that recovers by description, end nothing that another client has begun.
            former: our own producer id and epoch, if only the epoch has to move: InitProducerId then fails if
                another producer took over, instead of fencing it (KIP-360).
        """
        offer = await self._requests.fetch_capabilities()
        if not self._modes:
            if keep:
                raise InvalidTxnState("init_transactions(True): no mode to keep a transaction is configured")
            return await self._init_without_keep(None, offer, former)
        refusals: list[tuple[Mode, BrokerRefused]] = []
        while True:
            mode = self._choose_mode(offer, refusals)
            try:
                if not mode.recovers_by_description:
                    return await self._init_with_keep(mode, offer, former, keep=keep)
                if keep:
                    return await self._describe(mode, offer)
                return await self._init_without_keep(mode, offer, former, only_if_idle=only_if_idle)
            except BrokerRefused as exc:
                if exc.api != "InitProducerId" or (mode, exc.code) not in MODE_REFUSALS:
                    raise
                _log.info("%s: mode %s was refused: %s", self._transactional_id, mode.value, exc.what())
                refusals.append((mode, exc))

    async def _describe(self, mode: Mode, offer: ClusterCapabilities) -> DescribedTxnId:
        description = await self._requests.describe()
        writer = description.identity if description is not None and description.state == "Ongoing" else None
        return DescribedTxnId(mode=mode, writer=writer, version=offer.transaction_version)

    @property
    def _transactional_id(self) -> str:
        return self._requests.transactional_id

    def _choose_mode(
        self, offer: ClusterCapabilities, refusals: Sequence[tuple[Mode, BrokerRefused]]
    ) -> Mode:
        mode = choose_mode(self._modes, offer, [(mode, exc.code) for mode, exc in refusals])
        if isinstance(mode, Mode):
            return mode
        if refusals:
            _, last_refusal = refusals[-1]
            raise build_broker_error(
                last_refusal.api, self._transactional_id, last_refusal.code, str(mode)
            ) from last_refusal
        raise NotSupported("a prepared transaction that outlives its client", str(mode))

    async def _init_without_keep(
        self,
        mode: Mode | None,
        offer: ClusterCapabilities,
        former: ProducerIdAndEpoch | None,
        *,
        only_if_idle: bool = False,
    ) -> InitializedTxnId:
        by_hand = mode is Mode.RESUME and offer.transaction_version < EPOCH_BUMP_VERSION
        if (former is not None or by_hand) and offer.init_version < INIT_EPOCH_BUMP_VERSION:
            raise NotSupported("another epoch for the same producer id", "InitProducerId version 3 (KIP-360)")
        request = replace(self._build_request(former), enable_2pc=mode is Mode.TWO_PHASE_RESUME)
        client, _ = await self._requests.init_producer_id(request, only_if_idle=only_if_idle)
        if by_hand:
            # A transaction that times out ends one epoch above its own. Under version 1 other ends do not
            # move the epoch, so the next transaction skips that one.
            client, _ = await self._requests.init_producer_id(self._build_request(client))
        return InitializedTxnId(mode=mode, client=client, version=offer.transaction_version)

    async def _init_with_keep(
        self, mode: Mode, offer: ClusterCapabilities, former: ProducerIdAndEpoch | None, *, keep: bool
    ) -> InitializedTxnId:
        """Initialise with KeepPreparedTxn (KIP-939). With `keep` false a second request aborts what is open.

        The second request names the producer id and epoch of the first: a client that claimed the
        transactional id in between keeps it, and this one is fenced.
        """
        earlier = await self._describe_if_allowed() if keep and offer.can_describe else None
        two_phase = mode is Mode.TWO_PHASE
        keeping = replace(self._build_request(former), enable_2pc=two_phase, keep_prepared_txn=True)
        client, kept_writer = await self._requests.init_producer_id(keeping)
        if kept_writer is not None and not keep:
            # KIP-98: InitProducerId without keep aborts what is open, and is retried until that is done.
            aborting = replace(self._build_request(client), enable_2pc=two_phase)
            client, kept_writer = await self._requests.init_producer_id(aborting)
        return InitializedTxnId(
            mode=mode,
            client=client,
            kept_identity=kept_writer,
            version=offer.transaction_version,
            earlier=earlier,
        )

    async def _describe_if_allowed(self) -> EarlierDescription | None:
        """Describe the transactional id; without the right to, return None, and recovery is plain KIP-939."""
        try:
            return EarlierDescription(await self._requests.describe())
        except BrokerRefused as exc:
            _log.info("%s: cannot be described: %s", self._transactional_id, exc.what())
            return None

    def _build_request(self, former: ProducerIdAndEpoch | None) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=-1 if former is None else former.producer_id,
            producer_epoch=-1 if former is None else former.epoch,
        )
