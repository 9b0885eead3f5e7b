"""Hostile logins: strangers at the broker's gate, brokers that lie to a client, and the rules that must hold.

An input is one conversation, drawn from a grammar of logins and then damaged: a step left out, doubled or
exchanged, a token changed as text or as bytes, a frame that announces gigabytes, another protocol. PBKDF2 is
replaced by a function that counts the iterations, so that a million inputs take minutes.

What is valid is decided here a second time (`is_valid_login`), straight from the RFCs.
"""

import hashlib
import random
import struct
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hmac import digest as hmac_digest
from typing import Any

from tests.support.hostile import mutate
from tests.support.scram_users import find_in

from tallystick.broker.server.handshakes import HandshakeTable
from tallystick.broker.server.login import LoginRefused
from tallystick.broker.server.login_gate import LoginGate
from tallystick.broker.server.login_rules import LoginRules
from tallystick.broker.server.request_memory import LargeRequestMemory, RequestMemory
from tallystick.client.errors import AuthenticationFailed
from tallystick.client.net.login_exchange import LoginExchange
from tallystick.kernel.log_throttle import LogThrottle
from tallystick.kernel.secret import Secret
from tallystick.protocol import DecodeError, decode_prefix, encode_parts
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.frames import InvalidFrameLength, ReceiveBuffer
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tallystick.security.principals import ANONYMOUS
from tallystick.security.sasl.mechanism import (
    SaslAuthenticationFailed,
    SaslClient,
    SaslPeerRefused,
    SaslServer,
)
from tallystick.security.sasl.oauthbearer import (
    OAUTHBEARER,
    OauthBearerClient,
    OauthBearerServer,
    TokenRefused,
    ValidatedToken,
)
from tallystick.security.sasl.plain import PLAIN, PlainClient, PlainServer
from tallystick.security.sasl.scram import (
    CLIENT_ITERATIONS_MAX,
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramMechanism,
    derive_credential,
)
from tallystick.security.sasl.scram_client import SaltedPasswords, ScramClient
from tallystick.security.sasl.scram_server import ScramServer

PASSWORDS = {"alice": "wonder", "bob": "b=u,ilder", "": "", "zoë": "pässword"}
TOKENS = {"good.token.alice": "alice", "good.token.bob": "bob"}
SALT, ITERATIONS = b"0123456789abcdef", 4096
MECHANISMS = (PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER)
STRANGER_BYTES_MAX = 524_288  # sasl.server.max.receive.size
FRAME_BYTES_MAX = 104_857_600  # socket.request.max.bytes
BUFFER_BYTES = 16_384
# An answer lists mechanisms or says in a sentence what is wrong; no more of it is the stranger's own text.
ANSWER_BYTES_MAX = TEXT_LENGTH_MAX = 3_000

Tamper = Callable[[bytes], bytes]


class Broken(AssertionError):
    """A rule does not hold; the text begins with the invariant's name."""


def require(holds: bool, invariant: str, why: str) -> None:
    if not holds:
        raise Broken(f"[{invariant}] {why}")


def salt_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Stand in for PBKDF2: as different for different arguments, and of the same length."""
    return hashlib.new(mechanism.hash_name, repr((password, salt, iterations)).encode()).digest()


class CountedPasswords(SaltedPasswords):
    """Salted passwords whose iterations are counted and not computed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.iterations = 0

    def compute(self, mechanism: ScramMechanism, password: Secret, salt: bytes, iterations: int) -> bytes:
        self.calls += 1
        self.iterations += iterations
        return salt_password(mechanism, password.reveal(), salt, iterations)


def _make_credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    salted = salt_password(mechanism, password, SALT, ITERATIONS)
    return derive_credential(mechanism, salted, SALT, ITERATIONS)


CREDENTIALS = {
    mechanism.name: {user: _make_credential(mechanism, text) for user, text in PASSWORDS.items() if user}
    for mechanism in SCRAM_MECHANISMS.values()
}


def validate_token(token: str) -> ValidatedToken:
    if token not in TOKENS:
        raise TokenRefused("unknown token")
    return ValidatedToken(subject=TOKENS[token], expires_at_ms=10_000)


# ------------------------------------------------------------------------ what is valid


def is_valid_login(mechanism: str, tokens: Sequence[bytes], answers: Sequence[bytes], user: str) -> bool:
    """Decide by the RFC alone whether these tokens prove that they come from `user`."""
    if mechanism == PLAIN:
        password = PASSWORDS.get(user)
        made = [f"{authzid}\0{user}\0{password}".encode() for authzid in ("", user)]
        return bool(password) and len(tokens) == 1 and tokens[0] in made
    if mechanism == OAUTHBEARER:
        shown = [token for token in TOKENS if f" {token}\x01".encode() in tokens[0]]
        return len(tokens) == 1 and user in [TOKENS[token] for token in shown]
    scram = SCRAM_MECHANISMS[mechanism]
    if len(tokens) != 2 or user not in PASSWORDS:
        return False
    first, server_first, final = tokens[0].decode(), answers[0].decode(), tokens[1].decode()
    unsigned, _, proof = final.rpartition(",p=")
    bare = first.split(",", 2)[2]
    nonce = server_first.split(",")[0]
    if nonce not in unsigned.split(",")[1:2] or not bare.startswith(f"n={_escape(user)},"):
        return False
    if b64decode(unsigned.split(",")[0][2:]).decode() != first[: len(first) - len(bare)]:
        return False
    auth_message = f"{bare},{server_first},{unsigned}".encode()
    return b64decode(proof) == sign(scram, PASSWORDS[user], auth_message)[0]


def sign(scram: ScramMechanism, password: str, auth_message: bytes) -> tuple[bytes, bytes]:
    """Return the client's proof and the server's signature (RFC 5802, section 3)."""
    name = scram.hash_name
    salted = salt_password(scram, password, SALT, ITERATIONS)
    client_key = hmac_digest(salted, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    signature = hmac_digest(stored_key, auth_message, name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return proof, hmac_digest(hmac_digest(salted, b"Server Key", name), auth_message, name)


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


# ------------------------------------------------------------------ the broker's side


class WatchedServer:
    """A server's half whose every success is looked at a second time."""

    def __init__(self, mechanism: str, server: SaslServer, world: "BrokerSide") -> None:
        self._mechanism, self._server, self._world = mechanism, server, world
        self._tokens: list[bytes] = []
        self._answers: list[bytes] = []

    @property
    def complete(self) -> bool:
        return self._server.complete

    @property
    def principal(self) -> str | None:
        return self._server.principal

    @property
    def session_expires_ms(self) -> int | None:
        return self._server.session_expires_ms

    def respond(self, token: bytes) -> bytes:
        before = self._server.complete
        answer = self._server.respond(token)
        self._tokens.append(bytes(token))
        self._answers.append(answer)
        if self._server.complete and not before:
            user = self._server.principal or ""
            is_valid = is_valid_login(self._mechanism, self._tokens, self._answers, user)
            require(is_valid, "LGN-2", f"{user!r} came in by {self._mechanism} with {self._tokens}")
            self._world.users.append(user)
        return answer


class _Timer:
    def cancel(self) -> None:
        pass


class _Loop:
    """What a gate needs of a loop: timers, which never fire here."""

    def call_later(self, *_: object) -> _Timer:
        return _Timer()


@dataclass
class BrokerSide:
    """One connection of a SASL listener: its buffer, account of memory, gate and login are the broker's."""

    max_reauth_ms: int
    now_ms: int = 1_000
    users: list[str] = field(default_factory=list)
    """Who has logged in, in order."""
    passed: int = 0
    """Requests that went on to the dispatcher."""
    look_ups: int = 0
    taken: int = 0
    answers: list[bytes] = field(default_factory=list)
    is_closed: bool = False

    def __post_init__(self) -> None:
        rules = LoginRules(
            {name: lambda name=name: self._make_server(name) for name in MECHANISMS},  # type: ignore[misc]
            self.max_reauth_ms,
            STRANGER_BYTES_MAX,
            timeout_s=10,
            failure_delay_s=0,
            now_ms=lambda: self.now_ms,
            under_way=HandshakeTable(1),
        )
        loop: Any = _Loop()
        self.gate = LoginGate(rules, loop, LogThrottle(lambda: 0.0), self._close, "host")
        self.gate._failures.take()  # the line that would be logged
        self.memory = RequestMemory(lambda: 1 << 30)
        share = LargeRequestMemory(self.memory, "host", self.gate.limit(lambda size, head: None), lambda: 0.0)
        self._buffer = ReceiveBuffer(BUFFER_BYTES, FRAME_BYTES_MAX, share)

    def _close(self, _why: str) -> None:
        self.is_closed = True

    def _make_server(self, mechanism: str) -> WatchedServer:
        return WatchedServer(mechanism, self._make_half(mechanism), self)

    def _make_half(self, mechanism: str) -> SaslServer:
        if mechanism == PLAIN:
            return PlainServer(self._look_up({user: Secret(text) for user, text in PASSWORDS.items()}))
        if mechanism == OAUTHBEARER:
            return OauthBearerServer(validate_token)
        look_up = self._look_up(CREDENTIALS[mechanism])
        scram = SCRAM_MECHANISMS[mechanism]
        return ScramServer(scram, find_in(look_up, scram), nonce="server")

    def _look_up(self, table: dict[str, Any]) -> Callable[[str], Any]:
        def look_up(user: str) -> Any:
            self.look_ups += 1
            return table.get(user)

        return look_up

    def receive(self, data: bytes, piece: int) -> None:
        """Take bytes as they come from a socket, and every request that they complete."""
        piece = max(piece, len(data) // 100)
        for at in range(0, len(data), piece):
            left = data[at : at + piece]
            while left and not self.is_closed:
                place = self._buffer.get_writable()
                size = min(len(left), len(place))
                place[:size] = left[:size]
                self._buffer.add(size)
                left = left[size:]
                self._take_frames()

    def _take_frames(self) -> None:
        try:
            while not self.is_closed and (frame := self._buffer.next_frame()) is not None:
                self._take(frame)
                self._buffer.consume()
        except (LoginRefused, InvalidFrameLength) as exc:
            self.is_closed = True
            require(len(str(exc)) <= TEXT_LENGTH_MAX, "LGN-4", f"a log line of {len(str(exc))} characters")

    def _take(self, frame: memoryview) -> None:
        self.taken += 1
        gate, before = self.gate, self.gate.principal
        answer = gate.take(frame, "peer")
        if answer is None:
            is_versions = frame[:2] == struct.pack(">h", ApiKey.API_VERSIONS)
            may_pass = is_versions or (bool(self.users) and not gate.has_failed)
            require(may_pass, "LGN-2", f"a stranger's request went through: {bytes(frame[:40]).hex()}")
            self.passed += 1
            return
        parts = answer if isinstance(answer, list) else _finish(answer)
        self.answers = [bytes(part) for part in parts]
        size = sum(map(len, self.answers))
        require(size <= ANSWER_BYTES_MAX, "LGN-4", f"an answer of {size} bytes")
        self.is_closed = self.is_closed or gate.has_failed
        if gate.principal is not before:
            require(before is ANONYMOUS, "LGN-3", f"{before} became {gate.principal}")
        if gate.principal is not ANONYMOUS:
            names = {gate.principal.name, self.users[0], *(() if gate.has_failed else self.users[-1:])}
            require(len(names) == 1, "LGN-3", f"one connection has the names {names}")

    def check_costs(self) -> None:
        require(self.look_ups <= self.taken, "LGN-4", f"{self.look_ups} look-ups, {self.taken} requests")
        if not self.users:
            used = max(self.memory.used_bytes, self._buffer.announced_bytes)
            is_bounded = used <= STRANGER_BYTES_MAX or self.is_closed
            require(is_bounded, "LGN-4", f"a stranger may send {used} bytes")


def _finish(answer: Awaitable[Any]) -> list[Any]:
    """Run the answer to a failed login, which waits for a moment and does nothing else."""
    steps: Any = answer.__await__()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: list[Any] = end.value
            return made


def make_frame(key: int, version: int, body: bytes) -> bytes:
    """Return a request with its length."""
    spec = API_SPECS[ApiKey(key)]
    header = RequestHeader(
        request_api_key=key, request_api_version=version, correlation_id=7, client_id="client"
    )
    version = min(max(version, spec.min_version), spec.max_version)
    data = b"".join(encode_parts(header, spec.get_request_header_version(version))) + body
    return struct.pack(">i", len(data)) + data


def make_client(mechanism: str, rng: random.Random, passwords: SaltedPasswords) -> SaslClient:
    """Return an honest client; in two of three cases its password or token is right."""
    user = rng.choice(("alice", "bob", "zoë", "mallory"))
    is_right = rng.random() < 0.67
    password = Secret(PASSWORDS.get(user, "guess") if is_right else rng.choice(("guess", "", "wonder ")))
    if mechanism == PLAIN:
        return PlainClient(user, password)
    if mechanism == OAUTHBEARER:
        token = rng.choice(tuple(TOKENS)) if is_right else "bad.token.alice"
        return OauthBearerClient(Secret(token), {}, rng.choice(("", "", "alice", "bob")))
    return ScramClient(SCRAM_MECHANISMS[mechanism], user, password, passwords, nonce="client")


FOREIGN = (
    b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    bytes.fromhex("16030100c8010000c40303") + bytes(196),
    bytes.fromhex("160301003b0100003703014a") + bytes(55),
    b"\0",
    b"",
    b"\x80\x2e\x01\x03\x01" + bytes(43),
)


class Stranger:
    """Sends one conversation to the broker's side."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._passwords = CountedPasswords()
        self._mechanism = rng.choice(MECHANISMS)
        self._client = make_client(self._mechanism, rng, self._passwords)
        self._challenge: bytes | None = None
        self.broker = BrokerSide(rng.choice((0, 0, 1, 2_000, 3_600_000)))
        self._piece = rng.choice((1, 3, 17, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20))

    def attack(self) -> None:
        for step in self._plan():
            if self.broker.is_closed:
                # The connection is over; the machine behind it must not come to life again.
                self.broker.is_closed = self._rng.random() < 0.7
                if self.broker.is_closed:
                    break
            data = step()
            if data:
                self.broker.receive(data, self._piece)
        self.broker.check_costs()

    def _plan(self) -> list[Callable[[], bytes]]:
        rng = self._rng
        rounds = 2 if self._mechanism in SCRAM_MECHANISMS else 1
        once = [self._handshake, *[self._token] * rounds]
        steps = [self._versions, *once, self._metadata]
        if rng.random() < 0.3:
            steps += [self._wait, self._renew, *once[1:], self._metadata]
        if rng.random() < 0.15:
            return steps
        pool = (self._versions, self._handshake, self._token, self._metadata, self._wait)
        pool += (self._renew, self._noise, self._huge, self._foreign, self._odd_token)
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            at = rng.randrange(len(steps))
            match rng.randrange(4):
                case 0:
                    del steps[at]
                case 1:
                    steps.insert(at, steps[at])
                case 2:
                    steps[at:] = [*steps[at + 1 : at + 2], steps[at], *steps[at + 2 :]]
                case _:
                    steps.insert(at, rng.choice(pool))
            steps = steps or [self._noise]
        return steps

    def _versions(self) -> bytes:
        return make_frame(ApiKey.API_VERSIONS, self._rng.choice((0, 0, 3, 99)), b"")

    def _handshake(self) -> bytes:
        name = (
            self._mechanism
            if self._rng.random() < 0.95
            else self._rng.choice(("GSSAPI", "plain", "\0" * 9_000))
        )
        version = self._rng.choice((1, 1, 1, 1, 1, 1, 0, 2))
        body = b"".join(encode_parts(SaslHandshakeRequest(mechanism=name), min(version, 1)))
        return self._damage(make_frame(ApiKey.SASL_HANDSHAKE, version, body))

    def _renew(self) -> bytes:
        """Begin another login on the connection, sometimes as another user or by another mechanism."""
        rng = self._rng
        if rng.random() < 0.3:
            self._mechanism = rng.choice(MECHANISMS)
        self._client, self._challenge = make_client(self._mechanism, rng, self._passwords), None
        return self._handshake()

    def _token(self) -> bytes:
        if self._challenge is not None:
            self._challenge = self._read_challenge()
        try:
            token = self._client.respond(self._challenge)
        except SaslPeerRefused:
            token = b""
        self._challenge = b""
        if self._rng.random() < 0.25:
            token = tamper(token, self._rng)
        return self._send_token(token)

    def _read_challenge(self) -> bytes:
        """Return the token of the latest answer; empty if it has none."""
        data = memoryview(b"".join(self.broker.answers))[9:]  # size, correlation id, tags
        try:
            return bytes(decode_prefix(SaslAuthenticateResponse, data, 2)[0].auth_bytes)
        except DecodeError:
            return b""

    def _odd_token(self) -> bytes:
        return self._send_token(self._rng.choice(ODD_TOKENS))

    def _send_token(self, token: bytes) -> bytes:
        body = b"".join(encode_parts(SaslAuthenticateRequest(auth_bytes=token), 2))
        return self._damage(make_frame(ApiKey.SASL_AUTHENTICATE, 2, body))

    def _metadata(self) -> bytes:
        return make_frame(ApiKey.METADATA, 9, b"")

    def _wait(self) -> bytes:
        self.broker.now_ms += self._rng.choice((1, 999, 1_000, 2_500, 10_000))
        return b""

    def _noise(self) -> bytes:
        return self._rng.randbytes(self._rng.randrange(60))

    def _huge(self) -> bytes:
        size = self._rng.choice(
            (STRANGER_BYTES_MAX, STRANGER_BYTES_MAX + 1, FRAME_BYTES_MAX, 2**31 - 1, -1, 0)
        )
        return struct.pack(">ihh", size, self._rng.choice((36, 17, 18, 0)), 0) + bytes(
            self._rng.choice((0, 100, 20_000))
        )

    def _foreign(self) -> bytes:
        return self._rng.choice(FOREIGN)

    def _damage(self, frame: bytes) -> bytes:
        return mutate(frame, self._rng) if self._rng.random() < 0.05 else frame


ODD_TOKENS = (
    b"",
    b"\0",
    b"\0\0\0\0",
    b"\0alice\0",
    b"\0\0wonder",
    b"\0\0",
    b"bob\0alice\0wonder",
    b"\0alice\0wonder\0",
    b"\xff\xfe\0a\0b",
    b"n,,n=alice,r=x,r=y",
    b"n,,n=alice,n=bob,r=x",
    b"n,,r=x,n=alice",
    b"n,,n=alice",
    b"n,,n=alice,r=",
    b"n,a=bob,n=alice,r=x",
    b"p=tls-unique,,n=alice,r=x",
    b"y,,n=alice,r=x",
    b"n,,m=1,n=alice,r=x",
    b"n,,n=alice,r=x,tokenauth=true",
    b"n,,n=a=2calice,r=x",
    b"n,,n=" + b"a" * 8_000 + b",r=x",
    b"n,,n=alice,r=" + b"," * 8_000,
    b"c=biws,r=clientserver,p=AAAA",
    b"c=biws,r=clientserver,p=" + b"A" * 43 + b"=",
    b"n,,\x01auth=Bearer good.token.alice\x01\x01extra",
    b"n,,\x01auth=Bearer good.token.alice\x01auth=Bearer good.token.bob\x01\x01",
    b"n,a=bob,\x01auth=Bearer good.token.alice\x01\x01",
    b"n,,\x01auth=Bearer \x01\x01",
    b"\x01",
    b"x" * 70_000,
)


def tamper(token: bytes, rng: random.Random) -> bytes:
    """Change a token: as a list of attributes, or as bytes."""
    if rng.random() < 0.4 or b"," not in token:
        return mutate(token, rng)
    parts = token.split(b",")
    at, other = rng.randrange(len(parts)), rng.randrange(len(parts))
    match rng.randrange(9):
        case 0:
            parts.insert(other, parts[at])  # an attribute twice
        case 1:
            del parts[at]
        case 2:
            parts[at], parts[other] = parts[other], parts[at]
        case 3:
            parts[at] = parts[at][:2] + b"x" + parts[at][2:]
        case 4:
            parts[at] = parts[at][:2]
        case 5:
            parts.insert(at, rng.choice((b"m=must", b"x=1", b"tokenauth=true", b"=", b"i=1", b"e=no")))
        case 6:
            parts[at] = b"i=" + rng.choice(ITERATION_TEXTS)
        case 7:
            parts[at] = parts[at][:2] + rng.choice((b"\xff\xff", b"====", b"A", b"QQ", b"Q Q=", b"\0"))
        case _:
            parts[at] = parts[at].swapcase()
    return b",".join(parts)


ITERATION_TEXTS = (b"0", b"1", b"-1", b"4095", b"1000000", b"1000001", b"2147483647", b"2147483648", b"1e6")
ITERATION_TEXTS += (b"9" * 400, b"0x1000", b"04096", b"", "\u0664\u0660\u0669\u0666".encode())


# ------------------------------------------------------------------ the client's side


class LyingBroker:
    """Answers a client's login as a server would, and changes what it says."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._passwords = CountedPasswords()
        self._mechanism = rng.choice((*SCRAM_MECHANISMS, *SCRAM_MECHANISMS, PLAIN, OAUTHBEARER))
        self._client = make_client(self._mechanism, rng, self._passwords)
        self._tokens: list[bytes] = []
        self._challenges: list[bytes] = []
        self._server = BrokerSide(0)._make_half(self._mechanism)
        self._honesty = rng.choice((1.0, 0.6, 0.6, 0.0))

    def attack(self) -> bool:
        """Run one login; return whether the client took it for complete."""
        exchange = LoginExchange(self._client, "broker:9092")
        try:
            exchange.start()
            request = exchange.handle_response(self._shake_hands())
            for _ in range(20):
                if request is None:
                    break
                request = exchange.handle_response(self._answer(request))
        except AuthenticationFailed as exc:
            require(len(str(exc)) <= TEXT_LENGTH_MAX, "LGN-5", f"an error of {len(str(exc))} characters")
        costs = self._passwords
        require(costs.calls <= 1, "LGN-5", f"PBKDF2 was computed {costs.calls} times")
        require(costs.iterations <= CLIENT_ITERATIONS_MAX, "LGN-5", f"{costs.iterations} iterations")
        is_complete = exchange.session_lifetime_ms is not None
        if is_complete and self._mechanism in SCRAM_MECHANISMS:
            require(self._has_proven(), "LGN-5", f"the client believed {self._challenges}")
        return is_complete

    def _has_proven(self) -> bool:
        """Decide whether the server's last message shows that it knows the password."""
        if len(self._tokens) != 2 or len(self._challenges) != 2:
            return False
        bare = self._tokens[0].decode().split(",", 2)[2]
        unsigned = self._tokens[1].decode().rpartition(",p=")[0]
        auth_message = f"{bare},{self._challenges[0].decode()},{unsigned}".encode()
        user = self._server.principal or ""
        password = PASSWORDS.get(user, "")
        expected = sign(SCRAM_MECHANISMS[self._mechanism], password, auth_message)[1]
        return bool(user) and b64decode(self._challenges[1].split(b",")[0][2:]) == expected

    def _shake_hands(self) -> SaslHandshakeResponse:
        rng = self._rng
        if rng.random() < 0.9:
            return SaslHandshakeResponse(mechanisms=MECHANISMS)
        names = rng.choice(((), MECHANISMS, ("x" * 32_000,) * 50))
        return SaslHandshakeResponse(error_code=rng.choice((33, 34, 58, -1, 999)), mechanisms=names)

    def _answer(self, request: object) -> SaslAuthenticateResponse:
        rng = self._rng
        assert isinstance(request, SaslAuthenticateRequest)
        self._tokens.append(bytes(request.auth_bytes))
        if rng.random() < 0.05:
            text = rng.choice((None, "", "no", "x" * 32_000))
            return SaslAuthenticateResponse(
                error_code=rng.choice((58, 34, -1, 999)), error_message=text, auth_bytes=b""
            )
        try:
            token = self._server.respond(self._tokens[-1])
        except SaslAuthenticationFailed:
            token = rng.choice(ODD_CHALLENGES)
        if rng.random() >= self._honesty:
            token = tamper(token, rng) if rng.random() < 0.7 else rng.choice(ODD_CHALLENGES)
        self._challenges.append(token)
        lifetime = rng.choice((0, 0, 1, -1, 3_600_000, 2**63 - 1))
        return SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime)


ODD_CHALLENGES = (
    b"",
    b"\x01",
    b"\xff",
    b"{}",
    b"v=",
    b"v=AAAA",
    b"v=" + b"A" * 43 + b"=",
    b"e=other-error",
    b"e=" + b"x" * 8_000,
    b"r=client,s=AAAA,i=4096",
    b"r=clientx,s=,i=4096",
    b"r=clientx,s=AAAA,i=1000001",
    b"r=clientx,s=AAAA,i=2147483648",
    b"r=clientx,s=AAAA,i=0",
    b"r=clientx,s=AAAA,s=AAAA,i=4096",
    b"r=clientx,i=4096,s=AAAA",
    b"r=other,s=AAAA,i=4096",
    b"m=x,r=clientx,s=AAAA,i=4096",
    b"r=clientx,s=AAAA,i=4096,x=1,x=2",
    b"r=clientx,s=====,i=4096",
    b"r=" + b"c" * 9_000 + b",s=AAAA,i=4096",
    b'{"status":"invalid_token"}',
)
