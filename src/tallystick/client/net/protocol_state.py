"""Protocol state of one connection, without the socket: versions, correlation ids, requests in flight. Pure.

The first exchange is ApiVersions, in a `VersionNegotiation`. A broker that does not support the version of
our request answers in version 0, with code 35 and, if it is recent, its range of versions; the client then
asks once more in a version that both support (KIP-511). The result makes a `ProtocolState`.

After that a request is a frame with a correlation id, and answers arrive in the order of the requests. An
answer out of order, an unreadable frame or an unexpected one ends the connection [CLI-3]: later frames could
not be trusted. At most `in_flight_max` requests await an answer.
"""

from collections import deque
from collections.abc import Mapping
from struct import Struct
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from tallystick.client.errors import NotSupported
from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode, get_error_name
from tallystick.kernel.value import Value
from tallystick.protocol import DecodeError, decode, decode_prefix, encode
from tallystick.protocol.apis import API_SPECS, ApiKey, ApiSpec
from tallystick.protocol.messages.cluster.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tallystick.protocol.messages.headers import ResponseHeader
from tallystick.protocol.primitives import Buffer
from tallystick.protocol.wire import Versions

W = TypeVar("W")

_REQUEST_HEADER: Final = Struct(
    ">ihhih"
)  # frame length, API key, version, correlation id, length of client id
_LENGTH_BYTES: Final = 4
_CORRELATION_ID: Final = Struct(">i")
_CORRELATION_ID_COUNT: Final = 2**31
_API_VERSIONS: Final = API_SPECS[ApiKey.API_VERSIONS]


class FeatureLevels(Value):
    """Finalized feature levels, and the epoch they were read at; a lower epoch is older (KIP-584)."""

    epoch: int
    levels: Mapping[str, int]

    def pick_newer(self, other: "FeatureLevels") -> "FeatureLevels":
        """Return the one with the higher epoch."""
        return other if other.epoch > self.epoch else self


NO_FEATURE_LEVELS: Final = FeatureLevels(-1, MappingProxyType({}))


class BrokerIdentity(Value):
    """A broker as metadata lists it, to be told to the server at its address (KIP-1242)."""

    cluster_id: str | None
    node_id: int

    def __str__(self) -> str:
        return f"broker {self.node_id} of cluster {self.cluster_id}"


ANY_BROKER: Final = BrokerIdentity(None, -1)


class NodeApiVersions(Value):
    """API versions and features that one broker announced."""

    ranges: Mapping[int, Versions]
    features: FeatureLevels

    def find_latest_usable(self, key: ApiKey, max_version: int | None = None) -> int | None:
        """Return the highest version both sides support, up to `max_version`; None when there is none."""
        ours, theirs = API_SPECS[key], self.ranges.get(key)
        if theirs is None or theirs.last is None:
            return None
        version = min(ours.max_version, theirs.last)
        if max_version is not None:
            version = min(version, max_version)
        return version if version >= max(ours.min_version, theirs.first) else None

    def require_version(self, key: ApiKey, version: int) -> int:
        """Return `version`. Raise NotSupported if the two sides do not share it."""
        if self.find_latest_usable(key, version) != version:
            theirs = self.ranges.get(key)
            offer = "does not offer it" if theirs is None else f"has {theirs.first} to {theirs.last}"
            raise NotSupported(f"{API_SPECS[key].name} version {version}", f"the broker {offer}")
        return version

    def choose_version(self, key: ApiKey, max_version: int | None = None) -> int:
        """Return the highest shared version. Raise NotSupported, with both ranges in its text, for none."""
        version = self.find_latest_usable(key, max_version)
        if version is not None:
            return version
        ours, theirs = API_SPECS[key], self.ranges.get(key)
        if theirs is None:
            raise NotSupported(ours.name, "the broker does not offer this API")
        highest = ours.max_version if max_version is None else min(ours.max_version, max_version)
        raise NotSupported(
            ours.name,
            f"the broker has versions {theirs.first} to {theirs.last}, "
            f"this client needs {ours.min_version} to {highest}",
        )


class InFlightRequest(Value, Generic[W]):
    """A request that was handed to the network and awaits its answer."""

    correlation_id: int
    spec: ApiSpec
    version: int
    waiter: W


class RequestHeaders:
    """Headers of one connection's requests, with correlation ids that go up by one."""

    __slots__ = ("_client_id", "correlation_id")

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id.encode()
        self.correlation_id = 0
        """Of the last request."""

    def build(self, spec: ApiSpec, version: int, size: int) -> bytes:
        """Return the header of the next request, frame length included; `size` bytes of body follow it."""
        self.correlation_id = (self.correlation_id + 1) % _CORRELATION_ID_COUNT
        name = self._client_id
        tags = b"\0" if spec.is_flexible(version) else b""
        length = _REQUEST_HEADER.size - _LENGTH_BYTES + len(name) + len(tags) + size
        header = _REQUEST_HEADER.pack(length, spec.key, version, self.correlation_id, len(name))
        return header + name + tags


class Misrouted(Exception):
    """Another broker answered than the wanted one (KIP-1242)."""


class VersionNegotiation:
    """First exchange of a connection: asks for the broker's API versions until one version is understood."""

    __slots__ = ("_headers", "_software_version", "_version", "_wanted")

    def __init__(self, headers: RequestHeaders, software_version: str, wanted: BrokerIdentity) -> None:
        """Create a negotiation that has sent nothing.

        Args:
            software_version: the version of this program that is sent to brokers (KIP-511).
            wanted: the broker that is to answer, or ANY_BROKER.
        """
        self._headers, self._software_version, self._wanted = headers, software_version, wanted
        self._version = _API_VERSIONS.max_version

    def build_request(self) -> bytes:
        """Return the ApiVersions request frame."""
        request = ApiVersionsRequest(
            client_software_name="tallystick",
            client_software_version=self._software_version,
            cluster_id=self._wanted.cluster_id,
            node_id=self._wanted.node_id,
        )
        body = encode(request if self._version >= 3 else ApiVersionsRequest(), self._version)
        return self._headers.build(_API_VERSIONS, self._version, len(body)) + body

    def handle_response(self, body: Buffer) -> NodeApiVersions | bytes:
        """Return the versions; or the request to send again if an older version is needed.

        Raises: DecodeError; NotSupported when the two sides share no version; Misrouted.
        """
        _check_correlation_id(body, self._headers.correlation_id)
        at = _CORRELATION_ID.size
        code = int.from_bytes(body[at : at + 2], "big", signed=True)
        # KIP-511: the refusal is in version 0, and has the range of versions if the broker is recent.
        if code == ErrorCode.UNSUPPORTED_VERSION and self._version > 0:
            api_keys = decode_prefix(ApiVersionsResponse, body, 0, at)[0].api_keys
            theirs = next((k.max_version for k in api_keys if k.api_key == ApiKey.API_VERSIONS), 0)
            self._version = min(theirs, self._version - 1)
            if self._version < 0:
                raise DecodeError(f"ApiVersions up to version {theirs}")
            return self.build_request()
        if code == ErrorCode.REBOOTSTRAP_REQUIRED and self._wanted != ANY_BROKER:
            raise Misrouted(f"it is not {self._wanted}")
        if code != ErrorCode.NONE:
            raise NotSupported("ApiVersions", f"the broker answered {get_error_name(code)}")
        answer = decode(ApiVersionsResponse, memoryview(body)[at:], self._version)
        features = {f.name: f.max_version_level for f in answer.finalized_features}
        return NodeApiVersions(
            MappingProxyType({k.api_key: Versions(k.min_version, k.max_version) for k in answer.api_keys}),
            FeatureLevels(answer.finalized_features_epoch, MappingProxyType(features)),
        )


class ProtocolState(Generic[W]):
    """Protocol state of one connection whose versions are negotiated.

    The owner of the socket feeds it and sends what it returns.
    """

    __slots__ = ("_headers", "_in_flight", "in_flight_max", "versions")

    def __init__(self, headers: RequestHeaders, versions: NodeApiVersions, in_flight_max: int) -> None:
        self._headers, self.versions, self.in_flight_max = headers, versions, in_flight_max
        self._in_flight: deque[InFlightRequest[W]] = deque()

    # ---------------------------------------------------------------------------- asking

    @property
    def can_send_more(self) -> bool:
        """Whether there is room for one more request."""
        return len(self._in_flight) < self.in_flight_max

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    @property
    def waiters(self) -> list[W]:
        """Waiters of the requests in flight, oldest first."""
        return [flight.waiter for flight in self._in_flight]

    def register_request(self, spec: ApiSpec, version: int, size: int, waiter: W | None) -> bytes:
        """Return the header of the next request, frame length included; `size` bytes of body follow it.

        Without a `waiter` no answer is expected (Produce with acks=0).
        """
        check(self.can_send_more, "no request beyond in_flight_max")
        header = self._headers.build(spec, version, size)
        if waiter is not None:
            self._in_flight.append(InFlightRequest(self._headers.correlation_id, spec, version, waiter))
        return header

    def match_response(self, body: Buffer) -> tuple[W, object]:
        """Return the waiter of this frame, and the answer. Record data stays a view of `body` [CLI-3].

        Raises: DecodeError; the connection is unusable then.
        """
        if not self._in_flight:
            raise DecodeError(f"{len(body)} bytes that answer no request")
        flight = self._in_flight[0]
        _check_correlation_id(body, flight.correlation_id)
        at = _CORRELATION_ID.size
        if flight.spec.get_response_header_version(flight.version) == 1:
            if len(body) > at and body[at] == 0:
                at += 1
            else:
                _, at = decode_prefix(ResponseHeader, body, 1)
        message: object = decode(flight.spec.response, memoryview(body)[at:], flight.version)
        self._in_flight.popleft()
        return flight.waiter, message

    @property
    def awaited_api(self) -> str:
        """API of the next answer, for error texts; empty if none is awaited."""
        return self._in_flight[0].spec.name if self._in_flight else ""

    def clear_in_flight(self) -> list[W]:
        """Drop all requests in flight and return their waiters."""
        waiters = self.waiters
        self._in_flight.clear()
        return waiters


def _check_correlation_id(body: Buffer, expected_id: int) -> None:
    if len(body) < _CORRELATION_ID.size:
        raise DecodeError(f"an answer of {len(body)} bytes")
    (correlation_id,) = _CORRELATION_ID.unpack_from(body)
    if correlation_id != expected_id:
        raise DecodeError(f"the answer to request {correlation_id}, where {expected_id} comes next")


def guess_protocol(start: Buffer) -> str:
    """Guess the peer's protocol from its first bytes, for error texts; empty if they give no clue."""
    head = bytes(start[:8])
    if head.startswith(b"HTTP"):
        return "that is an HTTP server"
    if len(head) >= 3 and head[0] in (0x15, 0x16) and head[1] == 3:
        return "that listener speaks TLS: set security.protocol to SSL or SASL_SSL"
    if head.startswith(b"SSH-"):
        return "that is an SSH server"
    return ""
