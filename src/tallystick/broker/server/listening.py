"""Listening sockets: one port for each listener, which hands every connection to the server.

A plain port is asyncio's own server. A TLS port accepts by itself, so that each connection gets the context
that is current at that moment, that handshakes are bounded in number and time, and that a failed one is
explained in the log.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol, cast

from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.config.listeners import LISTENER_PREFIX, Listener
from tallystick.broker.server.authentication_counts import AuthenticationCounts
from tallystick.broker.server.handshakes import HandshakeTable
from tallystick.broker.server.login_rules import (
    FindScramCredential,
    LoginRules,
    find_no_credential,
    make_login_rules,
)
from tallystick.broker.server.paced_tls import PacedTls
from tallystick.broker.server.signing_keys import SigningKeys
from tallystick.broker.server.tls_reload import ReloadingContext
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.log_throttle import LogThrottle
from tallystick.kernel.settings import BadConfig, collect_problems
from tallystick.kernel.value import Value
from tallystick.protocol.frames import InvalidFrameLength
from tallystick.security.principals import ANONYMOUS, Principal
from tallystick.security.sasl.plain import PLAIN
from tallystick.security.tls.failures import explain_handshake_failure, find_foreign_protocol
from tallystick.security.tls.names import read_subject_name
from tallystick.security.tls.principal_rules import map_principal
from tallystick.security.tls.settings import has_key_store, has_trust_store

_log = logging.getLogger("tallystick.broker.server")

# How long a peer may take for its half of TLS's farewell; asyncio would wait 30 s.
SHUTDOWN_TIMEOUT_S: Final = 2.0
# After a failed accept, usually for want of descriptors.
_ACCEPT_RETRY_S: Final = 1.0


class ConnectionHost(Protocol):
    """Interface of the server for a listening port."""

    loop: asyncio.AbstractEventLoop

    def make_connection(self, port: "ListeningPort") -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        ...

    def find_refusal(self, listener: str, host: str, handshakes: int, handshakes_of_host: int) -> str | None:
        """Return why no further connection from `host` is let in at a listener."""
        ...


class ListeningPort(Protocol):
    """One listener's socket.

    authentications  None where a client proves nothing
    """

    name: str
    address: tuple[str, int]
    logins: LoginRules | None
    authentications: AuthenticationCounts | None

    @property
    def is_listening(self) -> bool: ...

    def identify(self, transport: asyncio.BaseTransport) -> Principal:
        """Return the principal of a connection. Raises: TallystickError, if it is let in under no name."""
        ...

    async def start(self, backlog: int) -> None:
        """Bind and listen. Raises: OSError."""
        ...

    async def prepare_keys(self, listener: Listener, *, is_touched: bool) -> Callable[[], None]:
        """Load the keys of changed settings; return what puts them in use. Raises: BadConfig."""
        ...

    async def refresh_files(self) -> None:
        """Look for changed files of keys now, and not at the next interval."""
        ...

    def close(self) -> None:
        """Accept no more."""
        ...


class TlsListenerState(Value):
    """State of a TLS listener, for metrics."""

    name: str
    is_reload_failed: bool
    valid_until_s: float
    reload_count: int
    failed_handshakes: int


def make_ports(
    listeners: Sequence[Listener],
    host: ConnectionHost,
    find_credential: FindScramCredential = find_no_credential,
) -> list[ListeningPort]:
    """Make a port for each listener. Raises: BadConfig with every problem of their keys."""
    ports: list[ListeningPort] = []
    problems: list[str] = []
    for listener in listeners:
        try:
            logins = make_login_rules(listener, find_credential)
            make_port = TlsPort if listener.protocol.uses_tls else PlainPort
            ports.append(make_port(listener, host, logins))
        except BadConfig as exc:
            problems += [f"listener {listener.name}: {line}" for line in str(exc).splitlines()]
    if problems:
        raise BadConfig("\n".join(problems))
    return ports


def explain_length(exc: InvalidFrameLength, listener: str) -> str:
    """Return why a frame's length ends its connection, and what the client may speak instead."""
    foreign = find_foreign_protocol((exc.length & 0xFFFFFFFF).to_bytes(4, "big"))
    why = f"a request has {exc.length} bytes, but socket.request.max.bytes is {exc.limit}"
    return f"{why}: the client speaks {foreign}, listener {listener} does not" if foreign else why


def list_tls_states(ports: Sequence[ListeningPort]) -> list[TlsListenerState]:
    """Return the state of each listener with TLS."""
    return [port.state for port in ports if isinstance(port, TlsPort)]


def list_signing_keys(ports: Sequence[ListeningPort]) -> list[SigningKeys]:
    """Return the keys that tokens are checked with, of each listener that takes any."""
    keys = [port.logins.signing_keys for port in ports if port.logins is not None]
    return [each for each in keys if each is not None]


def load_keys(ports: Sequence[ListeningPort], listeners: Sequence[Listener]) -> None:
    """Load the keys of stored settings before the first connection. Raises: BadConfig."""
    listeners_by_name = {each.name: each for each in listeners}
    for port in ports:
        if isinstance(port, TlsPort):
            port.load_keys(listeners_by_name[port.name])


async def prepare_keys(
    ports: Sequence[ListeningPort], listeners: Sequence[Listener], touched: Collection[str]
) -> Callable[[], None]:
    """Load the keys of changed settings; return the function that puts them, and users of PLAIN, in use.

    Args:
        listeners: with the settings as they would be.
        touched: names of the settings that the change sets: the same file set again is read again.

    Raises: BadConfig with the problems of every listener; nothing has changed then.
    """
    listeners_by_name = {each.name: each for each in listeners}
    problems, renewals = list[str](), list[Callable[[], None]]()
    for port in ports:
        with collect_problems(problems):
            prefix = f"{LISTENER_PREFIX}{port.name.lower()}.ssl."
            renewal = await port.prepare_keys(
                listeners_by_name[port.name], is_touched=any(name.startswith(prefix) for name in touched)
            )
            renewals.append(renewal)

    def use() -> None:
        for renewal in renewals:
            renewal()
        for port in ports:
            if port.logins is not None and PLAIN in port.logins.mechanisms:
                port.logins.use_plain_users(listeners_by_name[port.name])

    if problems:
        raise BadConfig("\n".join(problems))
    return use


def _keep() -> None:
    """Do nothing: the keys stay as they are."""


class PlainPort:
    """A port without TLS."""

    def __init__(self, listener: Listener, host: ConnectionHost, logins: LoginRules | None) -> None:
        self._listener, self._host = listener, host
        self.name = listener.name
        self.address = ("", 0)
        self.logins = logins
        self.authentications = None if self.logins is None else self.logins.counts
        self._server: asyncio.Server | None = None

    @property
    def is_listening(self) -> bool:
        return self._server is not None and self._server.is_serving()

    def identify(self, transport: asyncio.BaseTransport) -> Principal:
        return ANONYMOUS

    async def start(self, backlog: int) -> None:
        endpoint = self._listener.endpoint
        self._server = await self._host.loop.create_server(
            lambda: self._host.make_connection(self), endpoint.host or None, endpoint.port, backlog=backlog
        )
        address = self._server.sockets[0].getsockname()
        self.address = str(address[0]), int(address[1])

    async def prepare_keys(self, listener: Listener, *, is_touched: bool) -> Callable[[], None]:
        if is_touched and listener.tls != self._listener.tls:
            raise BadConfig(
                f"listener {self.name}: Cannot add SSL keystore to an existing listener for which no "
                "keystore was configured: it does not use TLS"
            )
        return _keep

    async def refresh_files(self) -> None:
        """Do nothing: there are none."""

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


class TlsPort:
    """A port with TLS: accepts, shakes hands, and watches the files of its keys."""

    def __init__(self, listener: Listener, host: ConnectionHost, logins: LoginRules | None) -> None:
        """Read the keys. Raises: BadConfig."""
        self._listener, self._host = listener, host
        self.name = listener.name
        self.address = ("", 0)
        self.logins = logins
        self.authentications: AuthenticationCounts | None = (
            AuthenticationCounts() if self.logins is None else self.logins.counts
        )
        self.context = ReloadingContext(listener)
        self.failed_handshakes = 0
        self._rules = listener.principal_rules
        self._handshakes: HandshakeTable[asyncio.Task[None]] = HandshakeTable(
            listener.settings.ssl_handshakes_max
        )
        self._failures = LogThrottle(host.loop.time)
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_listening(self) -> bool:
        return bool(self._sockets)

    @property
    def state(self) -> TlsListenerState:
        context = self.context
        return TlsListenerState(
            self.name,
            context.failure is not None,
            context.certificate.not_after.timestamp(),
            context.reload_count,
            self.failed_handshakes,
        )

    def identify(self, transport: asyncio.BaseTransport) -> Principal:
        """Return what ssl.principal.mapping.rules make of the client's certificate."""
        tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        return Principal(map_principal(self._rules, read_subject_name(certificate)))

    async def start(self, backlog: int) -> None:
        self._sockets = _bind(self._listener.endpoint, backlog)
        address = self._sockets[0].getsockname()
        self.address = str(address[0]), int(address[1])
        self._tasks = [asyncio.ensure_future(self._accept(each)) for each in self._sockets]
        self._tasks.append(asyncio.ensure_future(self._watch_files()))

    def load_keys(self, listener: Listener) -> None:
        """Load other keys before the first connection. Raises: BadConfig."""
        if listener.tls != self.context.listener.tls:
            self.context = ReloadingContext(listener)

    async def prepare_keys(self, listener: Listener, *, is_touched: bool) -> Callable[[], None]:
        context = self.context
        before = context.listener.tls
        if listener.tls == before and not is_touched:
            return _keep
        try:
            if not has_key_store(listener.tls):
                raise BadConfig(
                    "Cannot remove the SSL keystore from an existing listener for which a keystore was "
                    "configured"
                )
            if has_trust_store(listener.tls) and not has_trust_store(before):
                raise BadConfig(
                    "Cannot add SSL truststore to an existing listener for which no truststore was configured"
                )
            keys = await asyncio.to_thread(context.prepare, listener)
        except BadConfig as exc:
            raise BadConfig(
                "\n".join(f"listener {self.name}: {line}" for line in str(exc).splitlines())
            ) from exc
        return partial(context.use, keys)

    def close(self) -> None:
        for task in (*self._tasks, *self._handshakes.keys()):
            task.cancel()
        for each in self._sockets:
            each.close()
        self._sockets = []

    async def _watch_files(self) -> None:
        interval_s = self._listener.settings.ssl_reload_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            await self.refresh_files()

    async def refresh_files(self) -> None:
        await asyncio.to_thread(self.context.refresh)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._host.loop.sock_accept(listening)
            except OSError as exc:
                _log.error("listener %s: no connection can be accepted: %s", self.name, exc)
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            self._begin_handshake(accepted, str(address[0]))

    def _begin_handshake(self, accepted: socket.socket, host: str) -> None:
        under_way = self._handshakes
        refusal = self._host.find_refusal(self.name, host, len(under_way), under_way.count(host))
        if refusal is not None:
            accepted.close()
            self._record_failure(host, refusal)
            return
        task = asyncio.ensure_future(self._shake_hands(accepted, host))
        task.add_done_callback(lambda future: under_way.remove(host, future))
        victim = under_way.add(host, task)
        if victim is not None:
            victim.cancel()

    async def _shake_hands(self, accepted: socket.socket, host: str) -> None:
        settings, loop = self._listener.settings, self._host.loop
        timeout_s = settings.ssl_handshake_timeout_ms / 1000
        started_s = loop.time()
        try:
            await loop.connect_accepted_socket(
                lambda: _pace(self._host.make_connection(self)),
                accepted,
                ssl=self.context.current,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
        except asyncio.CancelledError:
            accepted.close()
            if self._sockets:
                self._record_failure(
                    host, f"{settings.ssl_handshakes_max} are under way, which is ssl.handshakes.max"
                )
        except (OSError, TallystickError) as exc:
            accepted.close()
            if isinstance(exc, ssl.SSLError) and not isinstance(exc, ssl.SSLEOFError):
                cast(AuthenticationCounts, self.authentications).record_failure(is_renewal=False)
            why = explain_handshake_failure(exc)
            if loop.time() - started_s >= timeout_s:
                why = f"it did not end within ssl.handshake.timeout.ms, {settings.ssl_handshake_timeout_ms}"
            self._record_failure(host, why)

    def _record_failure(self, host: str, why: str) -> None:
        self.failed_handshakes += 1
        more = self._failures.take()
        if more is not None:
            _log.warning("listener %s: no connection with %s: %s%s", self.name, host, why, more)


def _bind(endpoint: Endpoint, backlog: int) -> list[socket.socket]:
    """Bind and listen on every address of a host, as asyncio's create_server does. Raises: OSError."""
    addresses = socket.getaddrinfo(
        endpoint.host or None, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            each = opened.enter_context(socket.socket(family, kind, protocol))
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(address)
            each.listen(backlog)
            each.setblocking(False)
            sockets.append(each)
        opened.pop_all()
    return sockets


def _pace(connection: asyncio.BaseProtocol) -> asyncio.BaseProtocol:
    """Pace a client's connection. The metrics' answers are small, and their protocol has no buffer."""
    return PacedTls(connection) if isinstance(connection, asyncio.BufferedProtocol) else connection
