"""Handshakes of TLS and logins under way, bounded: who never finishes one keeps out no client that does."""

from typing import Generic, TypeVar

K = TypeVar("K")


class HandshakeTable(Generic[K]):
    """Handshakes by address. While it is full, a new one ends the oldest of the address that has most."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._hosts: dict[str, dict[K, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count(self, host: str) -> int:
        """Return how many handshakes of one address are under way."""
        return len(self._hosts.get(host, ()))

    def add(self, host: str, key: K) -> K | None:
        """Add a handshake, and return the one to end if there is one too many. Cost: linear in addresses."""
        self._hosts.setdefault(host, {})[key] = None
        self._count += 1
        if self._count <= self.limit:
            return None
        greediest = max(self._hosts, key=lambda name: len(self._hosts[name]))
        victim = next(iter(self._hosts[greediest]))
        self.remove(greediest, victim)
        return victim

    def remove(self, host: str, key: K) -> None:
        """Remove a handshake that ended; one that is not there is ignored."""
        keys = self._hosts.get(host)
        if keys is None or key not in keys:
            return
        del keys[key]
        self._count -= 1
        if not keys:
            del self._hosts[host]

    def keys(self) -> list[K]:
        """Return every handshake under way."""
        return [key for keys in self._hosts.values() for key in keys]
