"""Numbers and limits of connections: of the broker, of one listener, of one address.

Kafka's acceptors wait while the broker or a listener has all its connections; here one connection too many is
closed, so that its client learns immediately, and can try another broker of its list. One of an address that
has all of its own is closed in both.

Source: KIP-402; Kafka SocketServer, ConnectionQuotas.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.connection_overrides import OVERRIDES, Resolver, resolve_overrides
from tallystick.broker.config.listeners import LISTENER_PREFIX
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import Value


class ConnectionLimits(Value, kw_only=True):
    """The limits in force.

    per_listener  by name
    overrides     by address, instead of per_ip
    """

    total: int
    per_ip: int
    per_listener: Mapping[str, int]
    overrides: Mapping[str, int]


def find_addresses(host: str) -> Iterable[str]:
    """Return every address of a host, in the form that a peer's has. Blocking. Raises: OSError."""
    addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return dict.fromkeys(str(address[0]) for *_, address in addresses)


class ConnectionCounts:
    """Open connections of one server, and whether there may be one more. Lives on the loop."""

    def __init__(
        self, config: BrokerConfig, descriptors_max: Callable[[], int], resolve: Resolver = find_addresses
    ) -> None:
        """Count from nothing. Raises: BadConfig, for a host without an address.

        Args:
            descriptors_max: returns how many connections the descriptors suffice for now.
            resolve: returns the addresses of a host. May block: it is called at the start and in a thread.
        """
        self._descriptors_max, self._resolve = descriptors_max, resolve
        self._open = self._total = 0
        self._per_ip: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self.load(config)

    def load(self, config: BrokerConfig) -> None:
        """Apply the limits of a start. Blocking. Raises: BadConfig."""
        self._use(config, resolve_overrides(config.connection_overrides, self._resolve))

    def apply(self, config: BrokerConfig) -> None:
        """Apply limits that were changed at run time, with the addresses that hosts had."""
        self._use(config, self.limits.overrides)

    async def prepare(self, config: BrokerConfig, touched: Collection[str]) -> Callable[[], None]:
        """Find the addresses of changed hosts; return what puts them in use. Raises: BadConfig.

        Args:
            touched: names of the settings that the change sets: the same hosts set again are looked up again.
        """
        hosts, overrides = config.connection_overrides, self.limits.overrides
        if OVERRIDES in touched or hosts != self._hosts:
            overrides = await asyncio.to_thread(resolve_overrides, hosts, self._resolve)
        return partial(self._use, config, overrides)

    def _use(self, config: BrokerConfig, overrides: Mapping[str, int]) -> None:
        self._hosts = config.connection_overrides
        self.limits = ConnectionLimits(
            total=config.max_connections,
            per_ip=config.max_connections_per_ip,
            per_listener={each.name: each.max_connections for each in config.make_listeners()},
            overrides=overrides,
        )

    def add(self, listener: str, ip: str) -> str | None:
        """Count a connection; return the reason to close it if it is one too many.

        One too many takes a descriptor until it is closed, and no place of others.
        """
        refusal = self._find_excess(listener, ip, 1, 1)
        self._open += 1
        if refusal is None:
            self._total += 1
            self._per_ip[ip] += 1
            self._per_listener[listener] += 1
        return refusal

    def remove(self, listener: str, ip: str, *, was_refused: bool = False) -> None:
        """Count a connection no more."""
        self._open -= 1
        if was_refused:
            return
        self._total -= 1
        for counts, key in ((self._per_ip, ip), (self._per_listener, listener)):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]

    def find_refusal(self, listener: str, ip: str, handshakes: int, handshakes_of_ip: int) -> str | None:
        """Return why no further connection may come, none of the handshakes under way being counted yet."""
        return self._find_excess(listener, ip, handshakes + 1, handshakes_of_ip + 1)

    def _find_excess(self, listener: str, ip: str, more: int, more_of_ip: int) -> str | None:
        limits = self.limits
        total, of_ip = self._total + more, self._per_ip[ip] + more_of_ip
        if total > limits.total:
            return f"max.connections is {limits.total}"
        if self._open + more > (limit := self._descriptors_max()):
            return (
                f"the limit of open files leaves {limit} connections after the broker's own files;"
                " raise it (ulimit -n, LimitNOFILE)"
            )
        if self._per_listener[listener] + more > (limit := limits.per_listener.get(listener, INT32_MAX)):
            return f"{LISTENER_PREFIX}{listener.lower()}.max.connections is {limit}"
        if of_ip > (limit := limits.overrides.get(ip, limits.per_ip)):
            name = OVERRIDES if ip in limits.overrides else "max.connections.per.ip"
            return f"{name} is {limit}"
        return None
