"""`python -m tallystick.broker.ping HOST:PORT [--tls]`: whether a broker answers, for health checks.

It asks for ApiVersions, which every listener answers before a login, and needs no settings. An open port is
not enough: the kernel accepts connections for a process that is stuck.
"""

import argparse
import socket
import ssl
import sys
from typing import Final

from tallystick.broker.config.endpoint import Endpoint

TIMEOUT_S: Final = 5.0
# ApiVersions v0, header v1: key 18, version 0, correlation id, no client id.
_REQUEST: Final = bytes.fromhex("0000000a 0012 0000 74616c6c ffff")
_CORRELATION_ID: Final = _REQUEST[8:12]
_LENGTH_BYTES: Final = 4


def ping(endpoint: Endpoint, *, has_tls: bool, timeout_s: float = TIMEOUT_S) -> None:
    """Return when the broker has answered. Blocking. Raises: OSError, ValueError.

    The certificate is not checked: it is the clients' business, and its failure no reason to kill a broker.
    """
    with socket.create_connection((endpoint.host, endpoint.port), timeout_s) as plain:
        if not has_tls:
            _ask(plain)
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain) as secured:
            _ask(secured)


def _ask(connection: socket.socket) -> None:
    connection.sendall(_REQUEST)
    answer = b""
    while len(answer) < _LENGTH_BYTES + len(_CORRELATION_ID):
        piece = connection.recv(64)
        if not piece:
            raise ValueError("the connection was closed without an answer")
        answer += piece
    if not answer.startswith(_CORRELATION_ID, _LENGTH_BYTES):
        raise ValueError("the answer is not one of Kafka's protocol")


def main() -> int:
    """Return the exit code: 0 for a broker that answers, 1 with one line for any other."""
    parser = argparse.ArgumentParser(prog="python -m tallystick.broker.ping", description=__doc__)
    parser.add_argument("address", type=Endpoint.parse, metavar="HOST:PORT")
    parser.add_argument("--tls", action="store_true", help="the listener has TLS, of whatever certificate")
    options = parser.parse_args()
    try:
        ping(options.address, has_tls=options.tls)
    except (OSError, ValueError) as exc:
        print(f"{options.address}: no broker answers: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
