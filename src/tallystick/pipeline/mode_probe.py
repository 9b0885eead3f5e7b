"""Probe for the requested modes that a cluster supports, before anything is started."""

from collections.abc import Mapping

from tallystick.client.blocking.thread import engine_thread
from tallystick.client.config import ProducerConfig
from tallystick.client.net.cluster import Cluster
from tallystick.client.transactions.modes import Mode, NoMode, choose
from tallystick.client.transactions.wire import TxnWire
from tallystick.pipeline.clients import of_role
from tallystick.pipeline.definition import Definition
from tallystick.spark.protocol.transactional_ids import coordinator_id

_PATIENCE_MS = 5_000


def mode_in_force(definition: Definition) -> Mode | NoMode:
    """Return the strongest mode possible on the pipeline's cluster; its own broker supports all modes.

    Raises: client errors if the cluster does not answer.
    """
    modes = [Mode(name) for name in definition.modes]
    if definition.kafka is None:
        return modes[0]
    return _asked(definition, definition.kafka, modes)


def _asked(definition: Definition, kafka: Mapping[str, str], modes: list[Mode]) -> Mode | NoMode:
    engine = engine_thread()
    config = ProducerConfig.parse({**of_role("producer", kafka), "max.block.ms": _PATIENCE_MS})
    cluster = engine.do(lambda: Cluster(config.client), "Cluster")
    name = coordinator_id(definition.prefix(definition.outputs[0]))
    try:
        offer = engine.run(
            TxnWire(cluster, name, _PATIENCE_MS).offer(), _PATIENCE_MS / 1000 + 5, "ask for modes"
        )
    finally:
        engine.run(cluster.close(), _PATIENCE_MS / 1000, "close")
    return choose(modes, offer)
