"""Addresses of listeners, as host and port."""

from ipaddress import ip_address
from typing import Final

from tallystick.kernel.value import Value

WILDCARD_HOSTS: Final = frozenset({"0.0.0.0", "::", ""})


class Endpoint(Value):
    """Address of a listener, or the one that clients get."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """Parse `host:port` or `[v6]:port`. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65_535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{text!r}: an IPv6 address needs brackets, [{host}]:{port}")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it; a name other than localhost may be any address."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"
