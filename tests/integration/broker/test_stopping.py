"""A broker that is told to stop answers the requests that wait, and does not wait for them."""

import socket
import struct
from typing import TypeVar

import pytest

from tallystick.kernel.codes import ErrorCode
from tallystick.protocol import decode, encode
from tallystick.protocol.apis import API_SPECS
from tallystick.protocol.messages.groups.administration import DescribeGroupsRequest, DescribeGroupsResponse
from tallystick.protocol.messages.groups.membership import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

R = TypeVar("R")
VERSION = 4  # of both requests: the last without flexible headers


def send(peer: socket.socket, request: object) -> None:
    key = next(k for k, spec in API_SPECS.items() if spec.request is type(request))
    header = RequestHeader(request_api_key=key, request_api_version=VERSION, correlation_id=1, client_id="c")
    body = encode(header, 1) + encode(request, VERSION)
    peer.sendall(struct.pack(">i", len(body)) + body)


def receive(peer: socket.socket, cls: type[R]) -> R:
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        more = peer.recv(4096)
        if not more:
            raise EOFError
        data += more
    return decode(cls, data[8:], VERSION)


def join(member_id: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
    )


def test_a_parked_join_does_not_hold_up_the_end() -> None:
    broker = EmbeddedBroker(config={"group.initial.rebalance.delay.ms": "60000"}).start()
    host, _, port = broker.bootstrap_servers.rpartition(":")
    address = (host, int(port))
    with socket.create_connection(address, 20) as peer, socket.create_connection(address, 20) as watcher:
        send(peer, join(""))
        send(peer, join(receive(peer, JoinGroupResponse).member_id))

        def parked() -> bool:
            send(watcher, DescribeGroupsRequest(groups=("g",)))
            return receive(watcher, DescribeGroupsResponse).groups[0].group_state == "PreparingRebalance"

        eventually(parked, 20)
        # The join could wait for 50 s more. A stop that waited for it would cut it at its limit: no answer.
        assert broker.stop() == 0
        assert receive(peer, JoinGroupResponse).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
