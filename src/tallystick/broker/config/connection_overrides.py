"""`max.connections.per.ip.overrides`: limits of single addresses, as `host:count,host:count`.

Source: Kafka's SocketServerConfigs, KafkaConfig.maxConnectionsPerIpOverrides.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.settings import BadConfig

OVERRIDES: Final = "max.connections.per.ip.overrides"
Resolver = Callable[[str], Iterable[str]]
"""Returns the addresses of a host. Raises: OSError."""


def parse_overrides(text: str) -> dict[str, int]:
    """Return the limit of each host, which is a name or an address. Raises: BadConfig with every problem."""
    limits: dict[str, int] = {}
    problems = []
    for part in (piece.strip() for piece in text.split(",")):
        if not part:
            continue
        # The last colon, as in Kafka: an IPv6 address has more of them.
        host, colon, count = (piece.strip() for piece in part.rpartition(":"))
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not (count.isascii() and count.isdecimal()) or int(count) > INT32_MAX:
            problems.append(f"{OVERRIDES}: {part!r} is not HOST:COUNT, with a count of 0 to {INT32_MAX}")
        elif limits.setdefault(host, int(count)) != int(count):
            problems.append(f"{OVERRIDES}: {host} has two limits, {limits[host]} and {int(count)}")
    if problems:
        raise BadConfig("\n".join(problems))
    return limits


def resolve_overrides(limits: Mapping[str, int], resolve: Resolver) -> dict[str, int]:
    """Return the limit of each address: of every address that a name has now, the lowest if several name it.

    Kafka takes the first address of a name alone, so that its others would not be limited.

    Raises: BadConfig with every name that has none.
    """
    resolved: dict[str, int] = {}
    problems = []
    for host, limit in limits.items():
        try:
            addresses = tuple(resolve(host))
        except OSError as exc:
            problems.append(f"{OVERRIDES}: the address of {host} cannot be found: {exc.strerror or exc}")
            continue
        for address in addresses:
            resolved[address] = min(limit, resolved.get(address, limit))
    if problems:
        raise BadConfig("\n".join(problems))
    return resolved
