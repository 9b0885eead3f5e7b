"""Where the console listens, and who may read it."""

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tallystick.kernel.value import Value
from tallystick.security.http_credentials import CredentialFiles

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class ListenOptions(Value, kw_only=True):
    """Where the console listens, and who may read it.

    port          0: any free one
    host_names    further names that requests may come under
    certificate   PEM file with the certificate and its chain; None: no TLS
    key           PEM file with its key; None: it is in the same file as the certificate
    """

    host: str = "127.0.0.1"
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
                f"--listen {self.host}: whoever reaches this address could read topics, ids and rows. Give "
                "--token-file, or --user and --password-file; or listen on 127.0.0.1"
            )
        if not self.is_loopback and self.certificate is None:
            yield (
                f"--listen {self.host}: without TLS the credentials could be read on the way. Give "
                "--certificate, or listen on 127.0.0.1 behind a proxy that has TLS"
            )
        if self.key is not None and self.certificate is None:
            yield "--key: needs --certificate"

    def list_names(self) -> frozenset[str]:
        """Return the names that requests may come under; none: any, which a login protects."""
        if self.is_loopback:
            return LOOPBACK_NAMES | {self.host, *self.host_names}
        return frozenset(self.host_names)
