"""Connections of one client: one for each address and lane, made when it is first needed."""

import asyncio
from collections.abc import Callable, Mapping

from tallystick.client.config import Address
from tallystick.client.errors import Closed, Unreachable
from tallystick.client.jitter import shuffle
from tallystick.client.net.broker_connection import BrokerConnection
from tallystick.client.net.metadata import Node
from tallystick.client.net.network import ConnectionSettings, NetworkMetrics
from tallystick.client.net.protocol_state import NO_FEATURE_LEVELS, FeatureLevels, NodeApiVersions


class ConnectionPool:
    """Connections to the brokers of a cluster, and the features that these announced.

    The addresses of bootstrap.servers have negative node ids.
    """

    def __init__(self, settings: ConnectionSettings, nodes: Callable[[], Mapping[int, Node]]) -> None:
        """Create a pool without connections.

        Args:
            nodes: returns the brokers that metadata lists now.
        """
        self.network_metrics = NetworkMetrics()
        self.finalized_features: FeatureLevels = NO_FEATURE_LEVELS
        self._settings, self._config, self._get_nodes = settings, settings.config, nodes
        self._bootstrap = settings.config.bootstrap_addresses
        self._connections: dict[tuple[Address, str], BrokerConnection] = {}
        self._is_closed = False

    def get_connection(self, node_id: int, lane: str = "") -> BrokerConnection:
        """Return the connection of a broker and lane. Raises: Unreachable, Closed."""
        if self._is_closed:
            raise Closed("the client was closed")
        address = self.find_address(node_id)
        connection = self._connections.get((address, lane))
        if connection is None:
            connection = self._connections[address, lane] = BrokerConnection(
                address, self._settings, self.network_metrics, self._on_open
            )
        return connection

    def find_address(self, node_id: int) -> Address:
        """Return the address of a broker. Raises: Unreachable if metadata does not list it."""
        if node_id < 0:
            return self._bootstrap[-1 - node_id]
        node = self._get_nodes().get(node_id)
        if node is None:
            raise Unreachable(f"broker {node_id}", "the cluster does not list it")
        return node.address

    def list_candidates(self) -> list[int]:
        """Return brokers for requests that any can answer, the best first: reachable, connected, idle.

        The addresses of bootstrap.servers follow the known brokers.
        """
        if self._is_closed:
            raise Closed("the client was closed")
        nodes_by_id = self._get_nodes()
        nodes = list(nodes_by_id)
        shuffle(nodes)
        nodes.sort(key=self._rank_candidate)
        if nodes and self._config.metadata_recovery_strategy == "none":
            return nodes
        addresses = {node.address for node in nodes_by_id.values()}
        other_ids = [-1 - i for i, address in enumerate(self._bootstrap) if address not in addresses]
        shuffle(other_ids)
        return [*nodes, *sorted(other_ids, key=self._rank_candidate)]

    def _rank_candidate(self, node_id: int) -> tuple[bool, bool, int]:
        connection = self._connections.get((self.find_address(node_id), ""))
        if connection is None:
            return False, True, 0
        return connection.is_failing, not connection.is_connected, connection.pending_count

    def describe_waits(self) -> str:
        """Say what brokers have not done yet, for the text of a limit that passed."""
        texts = (connection.describe_wait() for connection in self._connections.values())
        return "; ".join(text for text in texts if text)

    def note_features(self, levels: FeatureLevels) -> None:
        """Note the finalized features that a broker reported; older ones change nothing."""
        self.finalized_features = self.finalized_features.pick_newer(levels)

    def forget_features(self) -> None:
        """Drop the features of another cluster: what the brokers connected to now reported is left."""
        self.finalized_features = NO_FEATURE_LEVELS
        for connection in self._connections.values():
            if connection.current_versions is not None:
                self._on_open(connection.current_versions)

    def close(self) -> list["asyncio.Future[None]"]:
        """Close every connection; return futures that are done when the sockets are closed."""
        self._is_closed = True
        return [end for link in self._connections.values() if (end := link.close()) is not None]

    def _on_open(self, versions: NodeApiVersions) -> None:
        self.note_features(versions.features)
