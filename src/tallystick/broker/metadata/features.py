"""Finalized feature levels, which clients rely on, kept in the metadata store (KIP-584, KIP-1022).

There is one feature, `transaction.version`: 0 and 1 are the protocol of KIP-98 and differ only in the form of
the log's records, 2 bumps the epoch with every end (KIP-890), and KIP-939 needs it. A client learns the level
from ApiVersions, with an epoch that grows by one with every change, so that it recognises an older answer.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from tallystick.broker.metadata.store import (
    STORAGE_FAILURES,
    MetadataStore,
    MetadataUnusable,
    is_rolled_back,
)
from tallystick.broker.metadata.worker import BlockingWorker
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.value import Value

_log = logging.getLogger("tallystick.broker.features")

TRANSACTION_VERSION: Final = "transaction.version"


class LevelRange(Value):
    """Range of levels that this version of the broker supports."""

    lowest: int
    highest: int

    def __contains__(self, level: int) -> bool:
        return self.lowest <= level <= self.highest


# A new data directory begins at the highest level.
SUPPORTED_FEATURES: Final[Mapping[str, LevelRange]] = MappingProxyType(
    {TRANSACTION_VERSION: LevelRange(0, 2)}
)


class UpgradeType(IntEnum):
    """Direction in which a level may move, with the numbers of the protocol."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(Value):
    """Requested level of one feature; `upgrade_type` None: an unknown number."""

    feature: str
    level: int
    upgrade_type: UpgradeType | None


def check_update(finalized: Mapping[str, int], update: FeatureUpdate) -> Reject | None:
    """Check whether the request alone allows the level to move from its present value.

    Source: FeatureControlManager.updateFeature.
    """
    reason = None
    supported = SUPPORTED_FEATURES.get(update.feature)
    now = finalized.get(update.feature, 0)
    if update.upgrade_type is None:
        reason = "the upgrade type is none that this broker knows"
    elif supported is None:
        reason = "this broker does not have the feature"
    elif update.level not in supported:
        reason = f"this broker has levels {supported.lowest} to {supported.highest}"
    elif update.level < now and update.upgrade_type is UpgradeType.UPGRADE:
        reason = f"it is at {now}, and the upgrade type allows no downgrade"
    elif update.level > now and update.upgrade_type is not UpgradeType.UPGRADE:
        reason = f"it is at {now}, and the upgrade type is a downgrade"
    if reason is None:
        return None
    return Reject(
        ErrorCode.INVALID_UPDATE_VERSION, f"{update.feature} cannot be set to {update.level}: {reason}"
    )


DowngradeGate = Callable[[int], AbstractAsyncContextManager[Reject | None]]


class FinalizedFeatures:
    """Finalized levels of this broker. Owned by it; lives on the loop."""

    def __init__(
        self,
        store: MetadataStore,
        worker: BlockingWorker,
        downgrade_gate: DowngradeGate,
        report_failure: Callable[[Exception], None],
    ) -> None:
        """Load the levels.

        Args:
            downgrade_gate: entered before `transaction.version` goes down to a level; yields why not,
                and keeps its answer true until exit.
            report_failure: called if a change may or may not be in the file: the broker must end then.

        Raises:
            MetadataUnusable: a level was finalized that this version does not support.
        """
        self._store = store
        self._worker = worker
        self._downgrade_gate = downgrade_gate
        self._report_failure = report_failure
        self._lock = asyncio.Lock()
        self.epoch, stored_levels = store.load_features()
        for name, level in stored_levels.items():
            if name not in SUPPORTED_FEATURES or level not in SUPPORTED_FEATURES[name]:
                raise MetadataUnusable(
                    f"feature {name} is finalized at level {level}, which this version does not support;"
                    " nothing was changed. Start the newer version that finalized it",
                )
        self.finalized: Mapping[str, int] = MappingProxyType(
            {name: stored_levels.get(name, levels.highest) for name, levels in SUPPORTED_FEATURES.items()}
        )

    @property
    def transaction_version(self) -> int:
        """Finalized `transaction.version`: 0, 1 or 2."""
        return self.finalized[TRANSACTION_VERSION]

    async def update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> Reject | None:
        """Set all levels, or, with a reason, none [MET-1].

        Either kind of downgrade is refused where it would lose state that the lower level cannot express: a
        prepared transaction must not become subject to a timeout because an administrator changes the level.
        """
        async with self._lock:
            for update in updates:
                refusal = check_update(self.finalized, update)
                if refusal is not None:
                    return refusal
            levels = {**self.finalized, **{update.feature: update.level for update in updates}}
            level = levels[TRANSACTION_VERSION]
            gate = self._downgrade_gate(level) if level < self.transaction_version else nullcontext(None)
            async with gate as refusal:
                if refusal is None and levels != self.finalized and not validate_only:
                    return await self._finalize(levels)
                return refusal

    async def _finalize(self, levels: Mapping[str, int]) -> Reject | None:
        """Make the levels durable, then put them in force [MET-1]."""
        epoch = self.epoch + 1
        try:
            await self._worker.run(lambda: self._store.set_features(epoch, levels))
        except STORAGE_FAILURES as exc:
            if not is_rolled_back(exc):
                self._report_failure(exc)
            _log.error("features cannot be updated: %s", exc)
            return Reject(ErrorCode.KAFKA_STORAGE_ERROR, f"features cannot be updated: {exc}")
        self.epoch, self.finalized = epoch, MappingProxyType(levels)
        return None
