"""Protocol state of one connection, without the socket: versions, correlation ids, requests in flight. Pure.

The first exchange is ApiVersions. A broker that does not support the version of our request answers in
version 0, with code 35 and, if it is recent, its range of versions; the client then asks once more in a
version that both support (KIP-511).

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
from tallystick.kernel.codes import ErrorCode, name_of
from tallystick.kernel.value import frozen
from tallystick.protocol import DecodeError, decode, decode_prefix, encode
from tallystick.protocol.apis import API, ApiKey, ApiSpec
from tallystick.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tallystick.protocol.messages.headers import ResponseHeader
from tallystick.protocol.primitives import Buffer
from tallystick.protocol.wire import Versions

W = TypeVar("W")

_HEADER: Final = Struct(">ihhih")  # frame length, API key, version, correlation id, length of client id
_LENGTH_BYTES: Final = 4
_CORRELATION: Final = Struct(">i")
_CORRELATION_IDS: Final = 2**31
_HELLO: Final = API[ApiKey.API_VERSIONS]


@frozen
class Features:
    """Finalized feature levels, and the epoch they were read at; a lower epoch is older (KIP-584)."""

    epoch: int
    levels: Mapping[str, int]

    def newest(self, other: "Features") -> "Features":
        """Return the one with the higher epoch."""
        return other if other.epoch > self.epoch else self


NO_FEATURES: Final = Features(-1, MappingProxyType({}))


@frozen
class BrokerVersions:
    """API versions and features that one broker announced."""

    ranges: Mapping[int, Versions]
    features: Features

    def highest(self, key: ApiKey, max_version: int | None = None) -> int | None:
        """Return the highest version both sides support, up to `max_version`; None when there is none."""
        ours, theirs = API[key], self.ranges.get(key)
        if theirs is None or theirs.last is None:
            return None
        version = min(ours.max_version, theirs.last)
        if max_version is not None:
            version = min(version, max_version)
        return version if version >= max(ours.min_version, theirs.first) else None

    def exactly(self, key: ApiKey, version: int) -> int:
        """Return `version`. Raise NotSupported if the two sides do not share it."""
        if self.highest(key, version) != version:
            theirs = self.ranges.get(key)
            offered = "does not offer it" if theirs is None else f"has {theirs.first} to {theirs.last}"
            raise NotSupported(f"{API[key].name} version {version}", f"the broker {offered}")
        return version

    def pick(self, key: ApiKey, max_version: int | None = None) -> int:
        """Return the highest shared version. Raise NotSupported, with both ranges in its text, for none."""
        version = self.highest(key, max_version)
        if version is not None:
            return version
        ours, theirs = API[key], self.ranges.get(key)
        if theirs is None:
            raise NotSupported(ours.name, "the broker does not offer this API")
        last = ours.max_version if max_version is None else min(ours.max_version, max_version)
        raise NotSupported(
            ours.name,
            f"the broker has versions {theirs.first} to {theirs.last}, "
            f"this client needs {ours.min_version} to {last}",
        )


@frozen
class InFlight(Generic[W]):
    """A request that was handed to the network and awaits its answer."""

    correlation_id: int
    spec: ApiSpec
    version: int
    waiter: W


class Session(Generic[W]):
    """Protocol state of one connection; the owner of the socket feeds it and sends what it returns."""

    __slots__ = (
        "_client_id",
        "_correlation_id",
        "_hello_version",
        "_in_flight",
        "_software",
        "in_flight_max",
        "versions",
    )

    def __init__(self, client_id: str, software: str, in_flight_max: int) -> None:
        """Create the state of a new connection.

        `software`: the version of this program that is sent to brokers (KIP-511).
        """
        self._client_id = client_id.encode()
        self._software = software
        self._correlation_id = 0
        self._hello_version = _HELLO.max_version
        self._in_flight: deque[InFlight[W]] = deque()
        self.in_flight_max = in_flight_max
        self.versions: BrokerVersions | None = None

    # ----------------------------------------------------------------------- negotiation

    def hello(self) -> bytes:
        """Return the ApiVersions request frame."""
        version = self._hello_version
        named = ApiVersionsRequest(client_software_name="tallystick", client_software_version=self._software)
        body = encode(named if version >= 3 else ApiVersionsRequest(), version)
        return self._header(_HELLO, version, self._next_id(), len(body)) + body

    def welcome(self, body: Buffer) -> bytes | None:
        """Read the answer to `hello`; return the next frame to send if an older version is needed.

        Raises: DecodeError; NotSupported when the two sides share no version.
        """
        self._check_id(body, self._correlation_id)
        at = _CORRELATION.size
        code = int.from_bytes(body[at : at + 2], "big", signed=True)
        # KIP-511: the refusal is in version 0, and has the range of versions if the broker is recent.
        if code == ErrorCode.UNSUPPORTED_VERSION and self._hello_version > 0:
            offered = decode_prefix(ApiVersionsResponse, body, 0, at)[0].api_keys
            theirs = next((k.max_version for k in offered if k.api_key == ApiKey.API_VERSIONS), 0)
            self._hello_version = min(theirs, self._hello_version - 1)
            if self._hello_version < 0:
                raise DecodeError(f"ApiVersions up to version {theirs}")
            return self.hello()
        if code != ErrorCode.NONE:
            raise NotSupported("ApiVersions", f"the broker answered {name_of(code)}")
        answer = decode(ApiVersionsResponse, memoryview(body)[at:], self._hello_version)
        features = {f.name: f.max_version_level for f in answer.finalized_features}
        self.versions = BrokerVersions(
            MappingProxyType({k.api_key: Versions(k.min_version, k.max_version) for k in answer.api_keys}),
            Features(answer.finalized_features_epoch, MappingProxyType(features)),
        )
        return None

    # ---------------------------------------------------------------------------- asking

    @property
    def may_ask(self) -> bool:
        """Whether there is room for one more request."""
        return len(self._in_flight) < self.in_flight_max

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def waiters(self) -> list[W]:
        """Waiters of the requests in flight, oldest first."""
        return [flight.waiter for flight in self._in_flight]

    def ask(self, spec: ApiSpec, version: int, size: int, waiter: W | None) -> bytes:
        """Return the header of the next request, frame length included; `size` bytes of body follow it.

        Without a `waiter` no answer is expected (Produce with acks=0).
        """
        check(self.may_ask, "no request beyond in_flight_max")
        correlation_id = self._next_id()
        if waiter is not None:
            self._in_flight.append(InFlight(correlation_id, spec, version, waiter))
        return self._header(spec, version, correlation_id, size)

    def answer(self, body: Buffer) -> tuple[W, object]:
        """Return the waiter of this frame, and the answer. Record data stays a view of `body` [CLI-3].

        Raises: DecodeError; the connection is unusable then.
        """
        if not self._in_flight:
            raise DecodeError(f"{len(body)} bytes that nobody asked for")
        flight = self._in_flight[0]
        self._check_id(body, flight.correlation_id)
        at = _CORRELATION.size
        if flight.spec.response_header_version(flight.version) == 1:
            if len(body) > at and body[at] == 0:
                at += 1
            else:
                _, at = decode_prefix(ResponseHeader, body, 1)
        message: object = decode(flight.spec.response, memoryview(body)[at:], flight.version)
        self._in_flight.popleft()
        return flight.waiter, message

    @property
    def awaited(self) -> str:
        """API of the next answer, for error texts."""
        return self._in_flight[0].spec.name if self._in_flight else _HELLO.name

    def abandon(self) -> list[W]:
        """Drop all requests in flight and return their waiters."""
        waiters = self.waiters
        self._in_flight.clear()
        return waiters

    # -------------------------------------------------------------------------- details

    def _next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
        return self._correlation_id

    def _header(self, spec: ApiSpec, version: int, correlation_id: int, size: int) -> bytes:
        name = self._client_id
        tags = b"\0" if spec.is_flexible(version) else b""
        length = _HEADER.size - _LENGTH_BYTES + len(name) + len(tags) + size
        return _HEADER.pack(length, spec.key, version, correlation_id, len(name)) + name + tags

    @staticmethod
    def _check_id(body: Buffer, expected: int) -> None:
        if len(body) < _CORRELATION.size:
            raise DecodeError(f"an answer of {len(body)} bytes")
        (found,) = _CORRELATION.unpack_from(body)
        if found != expected:
            raise DecodeError(f"the answer to request {found}, where {expected} comes next")


def guess_protocol(start: Buffer) -> str:
    """Guess the peer's protocol from its first bytes, for error texts; empty if they give no clue."""
    first = bytes(start[:8])
    if first.startswith(b"HTTP"):
        return "that is an HTTP server"
    if len(first) >= 3 and first[0] in (0x15, 0x16) and first[1] == 3:
        return "that listener wants TLS, which this client does not have"
    if first.startswith(b"SSH-"):
        return "that is an SSH server"
    return ""
