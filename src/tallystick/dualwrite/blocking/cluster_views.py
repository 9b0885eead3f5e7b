# Generated from dualwrite/aio/cluster_views.py by tools/async_to_sync.py. Do not edit it:
# change the source and run `make format`.
"""Steps on the clusters' administration: how a transaction stands, and when consumers can see it."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from tallystick.admin.client import Admin
from tallystick.client.blocking.producer import Producer
from tallystick.client.errors import ClientError, IdExpired, NotAuthorized, NotSupported
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.branch import ClusterBranch
from tallystick.dualwrite.errors import NotVisible
from tallystick.dualwrite.recipes import StepRunner
from tallystick.dualwrite.rules.recovery import ClusterHalf, to_txn_state
from tallystick.kernel.clock import Clock

_log = logging.getLogger("tallystick.dualwrite")

VISIBLE_MS_MAX: Final = 30_000
"""Maximum time that `wait_visible` waits for the transaction markers."""
_PAUSES_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
_MARKERS_PENDING: Final = frozenset({"PrepareCommit", "PrepareAbort"})


class ClusterViews:
    """What the clusters show of a writer's ids; it has an administrator of each cluster that was asked."""

    def __init__(
        self,
        create_admin: Callable[[Mapping[str, object]], Admin],
        pause: Callable[[float], object],
        clock: Clock,
        steps: StepRunner,
    ) -> None:
        self._create_admin = create_admin
        self._pause = pause
        self._clock = clock
        self._steps = steps
        self._admins: dict[str, Admin] = {}

    def _get_admin(self, branch: ClusterBranch[Producer]) -> Admin:
        if branch.id not in self._admins:
            self._admins[branch.id] = self._create_admin(branch.admin_config)
        return self._admins[branch.id]

    def describe(self, branch: ClusterBranch[Producer]) -> ClusterHalf:
        """Describe the transaction of a branch's id, as far as the cluster lets this client see it."""
        return self.describe_id(branch, branch.id)

    def describe_id(self, branch: ClusterBranch[Producer], transactional_id: str) -> ClusterHalf:
        """Describe the transaction of any id in the cluster of a branch."""
        admin = self._get_admin(branch)
        cluster = self._steps.run("describe cluster", branch.id, admin.describe_cluster)
        branch.cluster_id = cluster.cluster_id
        describing = admin.describe_transactions
        answers = self._steps.run("describe", transactional_id, describing, [transactional_id])
        match answers.failures.get(transactional_id):
            case None:
                return ClusterHalf(
                    txn_state=to_txn_state(answers.found[transactional_id]),
                    cluster_id=cluster.cluster_id,
                )
            case IdExpired():
                return ClusterHalf(txn_state=None, cluster_id=cluster.cluster_id)
            case NotAuthorized() | NotSupported() as why:
                _log.info("%s: cannot be described: %s", transactional_id, why.what())
                return ClusterHalf(txn_state=None, is_visible=False, cluster_id=cluster.cluster_id)
            case failure:
                raise failure

    def wait_for_markers(self, branch: ClusterBranch[Producer], token: PreparedTxnState) -> None:
        """Wait until the transaction markers are written, so that read_committed consumers see records."""
        if not token:
            return
        admin = self._get_admin(branch)
        give_up_at = self._clock.monotonic_ms() + VISIBLE_MS_MAX
        pauses = iter(_PAUSES_S)
        while True:
            try:
                answers = self._steps.run("look", branch.id, admin.describe_transactions, [branch.id])
                state = answers.one(branch.id).state
            except ClientError as exc:
                raise NotVisible(f"{branch.id}: {token} is committed; not looked at: {exc}") from exc
            if state not in _MARKERS_PENDING:
                return
            if self._clock.monotonic_ms() > give_up_at:
                raise NotVisible(
                    f"{branch.id}: {token} is committed, and after {VISIBLE_MS_MAX} ms not visible"
                )
            self._steps.run("pause", branch.id, self._pause, next(pauses, _PAUSES_S[-1]))

    def close(self) -> None:
        """Close the administrators."""
        for transactional_id in sorted(self._admins):
            admin = self._admins.pop(transactional_id)
            self._steps.run("close admin", transactional_id, admin.close)
