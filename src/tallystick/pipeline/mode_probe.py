"""Probe for the requested modes that a cluster supports, before anything is started."""

from collections.abc import Mapping, Sequence

from tallystick.client.blocking.thread import engine_thread
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import ProducerConfig
from tallystick.client.transactions.modes import Mode, NoPossibleMode, choose_mode, list_modes
from tallystick.client.transactions.request_sender import TxnRequestSender
from tallystick.pipeline.clients import settings_of_role
from tallystick.pipeline.definition import Definition
from tallystick.spark.protocol.transactional_ids import format_coordinator_id

_PROBE_TIMEOUT_MS = 5_000


def probe_mode(definition: Definition) -> Mode | NoPossibleMode:
    """Return the strongest mode possible on the pipeline's cluster; its own broker supports all modes.

    Raises: client errors if the cluster does not answer.
    """
    modes = list_modes(definition.modes)
    if definition.kafka is None:
        return modes[0]
    return _probe_cluster(definition, definition.kafka, modes)


def _probe_cluster(
    definition: Definition, kafka: Mapping[str, str], modes: Sequence[Mode]
) -> Mode | NoPossibleMode:
    engine = engine_thread()
    config = ProducerConfig.parse({**settings_of_role("producer", kafka), "max.block.ms": _PROBE_TIMEOUT_MS})
    cluster = engine.call(lambda: Cluster(config.client), "Cluster")
    name = format_coordinator_id(definition.prefix_of(definition.outputs[0]))
    try:
        offer = engine.run(
            TxnRequestSender(cluster, name, _PROBE_TIMEOUT_MS).fetch_capabilities(),
            _PROBE_TIMEOUT_MS / 1000,
            "ask for modes",
        )
    finally:
        engine.run(cluster.close(), _PROBE_TIMEOUT_MS / 1000, "close")
    return choose_mode(modes, offer)
