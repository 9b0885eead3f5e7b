"""Where tokens come from, how long they are kept, and what no error shows."""

import asyncio
import base64
import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
import trustme

from tallystick.client.errors import AuthenticationFailed, ClientError, Unreachable
from tallystick.client.net.token_endpoint import (
    BearerToken,
    build_token_request,
    parse_token_answer,
    read_expiry_ms,
)
from tallystick.client.net.tokens import TokenSource, compute_refresh_ms, parse_callback_answer
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import build_config
from tallystick.security.sasl.settings import SaslSettings
from tallystick.testing import FakeClock

HOUR_MS = 3_600_000
SETTINGS = SaslSettings()
URL = "https://idp/token"


def build_jwt(**claims: object) -> str:
    parts = [{"alg": "none"}, claims]
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*texts, ""])


@pytest.mark.parametrize(
    ("life_ms", "chance", "expected"),
    [
        (HOUR_MS, 0.0, 0.8 * HOUR_MS),
        (HOUR_MS, 1.0, 0.85 * HOUR_MS),
        (1_000_000, 0.0, 700_000),  # a buffer of 300 s before its end
        (361_000, 0.0, 61_000),
        (100_000, 0.0, 80_000),  # too short for buffer and least period
    ],
)
def test_a_token_is_due_at_80_percent(life_ms: int, chance: float, expected: float) -> None:
    """Kafka's sasl.login.refresh.window.factor, .jitter, .buffer.seconds and .min.period.seconds."""
    assert compute_refresh_ms(5, 5 + life_ms, SETTINGS, chance) == pytest.approx(5 + expected)


def test_a_token_of_unknown_life_is_due_at_once() -> None:
    assert compute_refresh_ms(5, None, SETTINGS, 0.5) == 5


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (("t", 2_000_000_000), BearerToken(Secret("t"), 2_000_000_000_000)),
        (("t", 2_000_000_000.5), BearerToken(Secret("t"), 2_000_000_000_500)),
        (("t", 2_000_000_000_000), BearerToken(Secret("t"), 2_000_000_000_000)),
        (("t", 2_000_000_000, "principal", {"k": "v"}), BearerToken(Secret("t"), 2_000_000_000_000)),
        ("t", BearerToken(Secret("t"), None)),
        (build_jwt(exp=2_000_000_000), BearerToken(Secret(build_jwt(exp=2_000_000_000)), 2_000_000_000_000)),
        ((Secret("t"), None), BearerToken(Secret("t"), None)),
    ],
)
def test_answers_of_functions(answer: object, expected: BearerToken) -> None:
    """Seconds as confluent-kafka takes them, milliseconds as MSK's signer returns them, a text as
    kafka-python."""
    assert parse_callback_answer(answer) == expected


@pytest.mark.parametrize("answer", [None, "", 5, ("hunter2",), ("hunter2", "later"), ("hunter2", True), {}])
def test_answers_that_are_no_token(answer: object) -> None:
    with pytest.raises(AuthenticationFailed, match="oauth_cb: the function returned") as caught:
        parse_callback_answer(answer)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "token", ["t", "a.b", "a.b.c", "..", build_jwt(), build_jwt(exp="x"), build_jwt(exp=1e99)]
)
def test_expiries_that_cannot_be_read(token: str) -> None:
    assert read_expiry_ms(token) is None


@dataclass
class Issuer:
    """A function that returns tokens for an hour, or fails."""

    clock: FakeClock
    issued: int = 0
    failure: Exception | None = None

    def __call__(self) -> tuple[str, float]:
        if self.failure is not None:
            raise self.failure
        self.issued += 1
        return f"t{self.issued}", self.clock.now_ms() + HOUR_MS


def test_a_token_is_shared_until_it_is_due() -> None:
    clock = FakeClock()
    issuer = Issuer(clock)
    source = TokenSource(SETTINGS, issuer, clock)

    async def main() -> None:
        assert await asyncio.gather(*(source.get() for _ in range(5))) == [Secret("t1")] * 5
        clock.advance(int(HOUR_MS * 0.79))
        assert await source.get() == Secret("t1")
        clock.advance(int(HOUR_MS * 0.07))
        assert await source.get() == Secret("t2")
        clock.advance(int(HOUR_MS * 0.9))
        issuer.failure = ValueError("hunter2")
        assert await source.get() == Secret("t2"), "it is valid, and a warning is enough"
        clock.advance(HOUR_MS)
        with pytest.raises(Unreachable, match="oauth_cb: the function raised ValueError") as caught:
            await source.get()
        assert "hunter2" not in str(caught.value)
        issuer.failure = None
        assert await source.get() == Secret("t3")

    asyncio.run(main())


def test_functions_of_every_shape() -> None:
    clock = FakeClock()

    async def later() -> tuple[str, float]:
        return "t", clock.now_ms() + HOUR_MS

    class Provider:
        def token(self) -> str:
            return "t"

    shapes: list[Callable[..., object]] = [later, lambda config: ("t", 2**42), Provider().token]
    for shape in shapes:
        assert asyncio.run(TokenSource(SETTINGS, shape, clock).get()) == Secret("t")


def test_a_token_that_expired_names_the_clocks() -> None:
    clock = FakeClock(5 * HOUR_MS)
    with pytest.raises(AuthenticationFailed, match="expired 3600000 ms ago: compare the clocks"):
        asyncio.run(TokenSource(SETTINGS, lambda: ("t", 4 * 3600), clock).get())


# --------------------------------------------------------------------------------- token endpoint


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"access_token":"t","expires_in":60}', BearerToken(Secret("t"), 61_000)),
        (b'{"access_token":"t"}', BearerToken(Secret("t"), None)),
        (b'{"access_token":"t","expires_in":"60"}', BearerToken(Secret("t"), None)),
        (
            json.dumps({"access_token": build_jwt(exp=7)}).encode(),
            BearerToken(Secret(build_jwt(exp=7)), 7_000),
        ),
    ],
)
def test_answers_of_an_endpoint(answer: bytes, expected: BearerToken) -> None:
    assert parse_token_answer(answer, URL, 1_000) == expected


@pytest.mark.parametrize(
    "answer", [b"", b"{}", b"[]", b'{"access_token":5}', b'{"access_token":""}', b"\xff"]
)
def test_answers_without_a_token(answer: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="no access_token"):
        parse_token_answer(answer, URL, 0)


@dataclass
class Endpoint:
    """A token endpoint with TLS; `answers` are status, headers and body, the last one for ever."""

    ca: trustme.CA
    folder: Path
    answers: list[tuple[int, dict[str, str], bytes]]
    seen: list[tuple[str, dict[str, str], str]] = field(default_factory=list)
    port: int = 0

    def settings(self, **more: str) -> SaslSettings:
        path = self.folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(path))
        texts = {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"https://localhost:{self.port}/token",
            "sasl.oauthbearer.client.credentials.client.id": "app:1",
            "sasl.oauthbearer.client.credentials.client.secret": "hunter2",
            "https.ca.location": str(path),
            "sasl.login.retry.backoff.ms": "1",
            **{name.replace("_", "."): text for name, text in more.items()},
        }
        return build_config(SaslSettings, texts)


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    ca = trustme.CA()
    made = Endpoint(ca, tmp_path, [(200, {}, b'{"access_token":"t","expires_in":60}')])

    class Handler(http.server.BaseHTTPRequestHandler):
        served: ClassVar[Endpoint] = made

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            self.served.seen.append((self.path, dict(self.headers.items()), body))
            answers = self.served.answers
            status, headers, content = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join(10)


def fetch(settings: SaslSettings) -> str:
    return asyncio.run(TokenSource(settings, None, FakeClock()).get()).reveal()


def test_a_token_for_a_clients_secret(endpoint: Endpoint) -> None:
    """RFC 6749, section 4.4.2: grant_type "client_credentials"; id and secret as in section 2.3.1."""
    assert fetch(endpoint.settings(sasl_oauthbearer_scope="kafka all")) == "t"
    ((path, headers, body),) = endpoint.seen
    assert (path, body) == ("/token", "grant_type=client_credentials&scope=kafka+all")
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"app:1:hunter2"
    encoded = build_config(SaslSettings, {}).sasl_oauthbearer_header_urlencode
    assert encoded is False
    credentials = endpoint.settings(sasl_oauthbearer_header_urlencode="true").login.credentials
    assert credentials is not None
    request = build_token_request(credentials)
    assert base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")) == b"app%3A1:hunter2"


def test_a_busy_endpoint_is_asked_again(endpoint: Endpoint) -> None:
    endpoint.answers[:0] = [(503, {}, b""), (500, {}, b"")]
    assert fetch(endpoint.settings()) == "t"
    assert len(endpoint.seen) == 3
    endpoint.answers[:] = [(503, {}, b"")]
    with pytest.raises(Unreachable, match="answered 503"):
        fetch(endpoint.settings())


@pytest.mark.parametrize(
    ("status", "headers", "text"),
    [
        (401, {}, "answered 401: invalid_client"),
        (302, {"Location": "https://localhost:1/steal"}, "answered 302"),
        (307, {"Location": "https://localhost:1/steal"}, "answered 307"),
        (307, {"Location": "http://localhost/steal"}, "answered 307"),
        (307, {"Location": "file:///etc/passwd"}, "answered 307|Redirect|redirect"),
    ],
)
def test_refusals_and_redirects_to_other_hosts(
    endpoint: Endpoint, status: int, headers: dict[str, str], text: str
) -> None:
    """CVE-2025-27817: the secret goes to the host that was configured, and nowhere else."""
    endpoint.answers[:] = [(status, headers, b'{"error":"invalid_client","error_description":"hunter2"}')]
    with pytest.raises(AuthenticationFailed, match=text) as caught:
        fetch(endpoint.settings())
    assert len(endpoint.seen) == 1
    assert "hunter2" not in str(caught.value)


def test_a_redirect_on_the_same_host_is_followed(endpoint: Endpoint) -> None:
    endpoint.answers[:0] = [(307, {"Location": "/other"}, b"")]
    assert fetch(endpoint.settings()) == "t"
    assert [path for path, _, _ in endpoint.seen] == ["/token", "/other"]
    assert endpoint.seen[1][2] == "grant_type=client_credentials"
    assert endpoint.seen[1][1]["Authorization"] == endpoint.seen[0][1]["Authorization"]


def test_an_endpoint_that_is_not_trusted_gets_nothing(endpoint: Endpoint) -> None:
    settings = endpoint.settings(https_ca_location="")
    with pytest.raises(AuthenticationFailed, match="certificate is refused"):
        fetch(settings)
    with contextlib.suppress(ClientError):
        fetch(endpoint.settings(https_ca_location="/does/not/exist"))
    assert endpoint.seen == []
