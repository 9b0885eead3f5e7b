"""The address of the console, and its credentials."""

import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value
from tallystick.security.http_credentials import CredentialFiles

DEFAULT_HOST: Final = "127.0.0.1"
PORT_MAX: Final = 65_535
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def parse_listen(text: str) -> tuple[str, int]:
    """Parse HOST:PORT; a port alone means loopback, and port 0 any free one. Raises: BadConfig."""
    host, _, port = f"{DEFAULT_HOST}:{text}".rpartition(":") if text.isdigit() else text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > PORT_MAX:
        raise BadConfig(f"--listen: {text!r} is not HOST:PORT")
    return host, int(port)


class ListenOptions(Value, kw_only=True):
    """The address of the console, and its credentials.

    port          0: any free one
    host_names    further names that requests may come under
    certificate   PEM file with the certificate and its chain; None: no TLS
    key           PEM file with its key; None: it is in the same file as the certificate
    """

    host: str = DEFAULT_HOST
    port: int = 8080
    host_names: tuple[str, ...] = ()
    credentials: CredentialFiles = CredentialFiles(prefix="--")
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def find_problems(self) -> Iterator[str]:
        """Yield what is wrong with these options, and what is not safe."""
        yield from self.credentials.find_problems()
        if not self.is_loopback and not self.credentials.are_given:
            yield (
                f"--listen {self.host}: any client that reaches it could read topics, ids and rows. "
                "Give --token-file, or --user and --password-file; or listen on 127.0.0.1"
            )
        if not self.is_loopback and self.certificate is None:
            yield (
                f"--listen {self.host}: without TLS the credentials could be read on the way. Give "
                "--certificate, or listen on 127.0.0.1 behind a proxy that has TLS"
            )
        if self.key is not None and self.certificate is None:
            yield "--key: needs --certificate"
        for option, path in (("--certificate", self.certificate), ("--key", self.key)):
            if path is not None and not path.is_file():
                yield f"{option} {path}: is not a file"

    def list_names(self) -> frozenset[str]:
        """Return the names that requests may come under; none: any, which a login protects."""
        if self.is_loopback:
            return LOOPBACK_NAMES | {self.host, *self.host_names}
        return frozenset(self.host_names)


def open_listener(options: ListenOptions) -> socket.socket:
    """Listen at the address: connections wait until the pages are there.

    Raises: BadConfig for an address that cannot be bound, and for credentials that cannot be read.
    """
    options.credentials.read()  # a file that cannot be used ends the start, and not the first request
    try:
        family, _, _, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as exc:
        raise BadConfig(f"--listen {options.host}:{options.port}: {exc.strerror or exc}") from exc
    return listener


def format_address(options: ListenOptions, listener: socket.socket) -> str:
    """Return the URL of the first page."""
    scheme = "http" if options.certificate is None else "https"
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}/"
