"""Who reads /metrics: TLS, tokens, passwords, and the address that needs one of them."""

import asyncio
import logging
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.serve import Service
from tallystick.kernel.settings import BadConfig

pytestmark = pytest.mark.server
EC = trustme.KeyType.ECDSA
DAYS = 'tallystick_tls_certificate_days_left{listener="metrics"}'
SCRAPE = b"GET /metrics HTTP/1.1\r\n"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=EC)


def write_key(path: Path, authority: trustme.CA) -> str:
    leaf = authority.issue_cert("localhost", key_type=EC)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
    fresh.replace(path)
    return str(path)


def write_secret(path: Path, text: str) -> str:
    path.touch(0o600)
    path.write_text(text + "\n")
    return str(path)


@asynccontextmanager
async def serving(tmp_path: Path, settings: Mapping[str, str]) -> AsyncIterator[Service]:
    given = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        "metrics.listener": "127.0.0.1:0",
        "log.reserve.bytes": "0",
        **settings,
    }
    (tmp_path / "data").mkdir(exist_ok=True)
    service = Service(BrokerConfig.parse(given))
    await service.start()
    try:
        async with asyncio.timeout(60):
            yield service
    finally:
        await service.stop()


async def ask(
    service: Service, *headers: str, tls: ssl.SSLContext | None = None, first: bytes = SCRAPE
) -> str:
    """Return the whole answer."""
    address = service.metrics_address
    assert address is not None
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=tls, server_hostname="localhost" if tls else None
    )
    try:
        writer.write(first + b"".join(f"{header}\r\n".encode() for header in headers) + b"\r\n")
        return (await reader.read()).decode()
    finally:
        writer.transport.abort()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.002)


def test_a_token_or_a_password_and_nothing_is_learned_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        settings = {
            "metrics.auth.token.file": write_secret(tmp_path / "token", "geheim1"),
            "metrics.auth.user": "prometheus",
            "metrics.auth.password.file": write_secret(tmp_path / "password", "geheim2"),
            "ssl.reload.interval.ms": "5",
        }
        async with serving(tmp_path, settings) as service:
            for headers in (
                (),
                ("Authorization: Bearer geheim2",),
                ("Authorization: Basic geheim1",),
                ("Authorization: Bearer geheim1", "Authorization: Bearer geheim1"),
            ):
                for first in (SCRAPE, b"GET /other HTTP/1.1\r\n", b"nonsense\r\n"):
                    answer = await ask(service, *headers, first=first)
                    assert answer.startswith("HTTP/1.1 401 Unauthorized\r\n")
                    assert 'WWW-Authenticate: Bearer realm="tallystick metrics"\r\n' in answer
                    assert 'WWW-Authenticate: Basic realm="tallystick metrics", charset="UTF-8"' in answer
            basic = b64encode(b"prometheus:geheim2").decode()
            for header in ("Authorization: Bearer geheim1", f"authorization:Basic {basic}"):
                assert (await ask(service, header)).startswith("HTTP/1.1 200 OK")
            assert (await ask(service, header, first=b"GET / HTTP/1.1\r\n")).startswith("HTTP/1.1 404")
            write_secret(tmp_path / "token", "geheim3")
            await until(lambda: "new credentials are in use" in caplog.text)
            assert (await ask(service, "Authorization: Bearer geheim3")).startswith("HTTP/1.1 200")
            assert (await ask(service, "Authorization: Bearer geheim1")).startswith("HTTP/1.1 401")
        assert "no metrics for 127.0.0.1: its request has no credentials, or wrong ones" in caplog.text

    with caplog.at_level(logging.DEBUG):
        asyncio.run(run())
    assert "geheim" not in caplog.text


@pytest.mark.gate(0)
def test_tls_with_keys_that_are_reloaded(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Settings of `metrics.ssl.*` win over `ssl.*`; a key that turns bad leaves the one before in use."""

    async def run() -> None:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.configure_trust(client)
        settings = {
            "metrics.listener": "https://127.0.0.1:0",
            "ssl.keystore.location": str(tmp_path / "none"),
            "metrics.ssl.keystore.location": write_key(tmp_path / "key.pem", authority),
            "metrics.ssl.reload.interval.ms": "5",
            "metrics.ssl.allow.dn.changes": "true",
        }
        async with serving(tmp_path, settings) as service:
            assert service._metrics is not None
            assert service._metrics.url.startswith("https://127.0.0.1:")
            answer = await ask(service, tls=client)
            certificate = x509.load_pem_x509_certificates((tmp_path / "key.pem").read_bytes())[0]
            left_days = (certificate.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)
            assert 'tallystick_tls_reload_failed{listener="metrics"} 0.0' in answer
            (days,) = (line.split()[1] for line in answer.splitlines() if line.startswith(DAYS))
            assert abs(float(days) - left_days) < 0.1
            with suppress(OSError):
                assert await ask(service) == ""
            (tmp_path / "key.pem").write_text("not a key")
            await until(lambda: "listener metrics: its changed keys are not used" in caplog.text)
            assert 'tallystick_tls_reload_failed{listener="metrics"} 1.0' in await ask(service, tls=client)
            write_key(tmp_path / "key.pem", authority)
            await until(lambda: "listener metrics: new keys are in use" in caplog.text)
            assert 'tallystick_tls_reloads_total{listener="metrics"} 1.0' in await ask(service, tls=client)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())


@pytest.mark.gate(0)
def test_a_scraper_with_a_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())

    async def run() -> None:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.configure_trust(client)
        settings = {
            "metrics.listener": "https://0.0.0.0:0",
            "ssl.keystore.location": write_key(tmp_path / "key.pem", authority),
            "metrics.ssl.truststore.location": str(tmp_path / "ca.pem"),
            "metrics.ssl.client.auth": "required",
        }
        async with serving(tmp_path, settings) as service:
            assert "open to the network" not in service.describe()
            with suppress(OSError):
                assert await ask(service, tls=client) == ""
            authority.issue_cert("scraper", key_type=EC).configure_cert(client)
            assert (await ask(service, tls=client)).startswith("HTTP/1.1 200")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({"metrics.listener": "192.0.2.1:9404"}, True),
        ({"metrics.listener": "https://192.0.2.1:9404"}, True),
        ({"metrics.listener": "http://host.example:9404"}, True),
        ({"metrics.listener": "127.0.0.1:9404"}, False),
        ({"metrics.listener": "192.0.2.1:9404", "metrics.auth.token.file": "/t"}, False),
        ({"metrics.listener": "192.0.2.1:9404", "allow.insecure.listeners": "true"}, False),
        ({"metrics.listener": "https://192.0.2.1:9404", "ssl.client.auth": "required"}, False),
        ({"metrics.listener": "http://192.0.2.1:9404", "ssl.client.auth": "required"}, True),
    ],
)
def test_metrics_for_everyone_on_the_network_must_be_asked_for(
    settings: dict[str, str], is_refused: bool
) -> None:
    if not is_refused:
        assert BrokerConfig.parse(settings)
        return
    with pytest.raises(BadConfig, match=r"^metrics\.listener: everyone who reaches .*:9404 reads"):
        BrokerConfig.parse(settings)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"metrics.auth.token.file": "/t"},
            "metrics.auth.token.file: has no effect without metrics.listener",
        ),
        ({"metrics.listener": "ftp://127.0.0.1:1"}, "ftp:// is neither http:// nor https://"),
        ({"metrics.listener": "127.0.0.1:1", "metrics.auth.user": "u"}, "give both, or none"),
        ({"metrics.listener": "127.0.0.1:1", "metrics.auth.password.file": "/p"}, "give both, or none"),
        (
            {"metrics.listener": "127.0.0.1:1", "metrics.auth.user": "u:", "metrics.auth.password.file": "/"},
            "has no colon",
        ),
        ({"metrics.listener": "127.0.0.1:1", "metrics.ssl.client.auth": "want"}, "'want' is not one of none"),
        ({"metrics.ssl.client.auht": "none"}, "metrics.ssl.client.auht: unknown setting"),
        (
            {"metrics.listener": "https://127.0.0.1:1", "metrics.ssl.keystore.key": "k"},
            "a private key needs its certificates (metrics.listener)",
        ),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(BadConfig) as caught:
        BrokerConfig.parse(settings)
    (line,) = str(caught.value).splitlines()
    assert problem in line


def test_its_bad_keys_are_told_with_those_of_the_other_listeners(tmp_path: Path) -> None:
    async def run() -> None:
        settings = {
            "listeners": "SSL://127.0.0.1:0",
            "metrics.listener": "https://127.0.0.1:0",
            "metrics.auth.token.file": str(tmp_path / "none"),
            "log.dirs": str(tmp_path),
        }
        with pytest.raises(BadConfig) as caught:
            Service(BrokerConfig.parse(settings))
        lines = [line.split(": ")[0] for line in str(caught.value).splitlines()]
        assert lines == ["listener SSL", "listener metrics", f"metrics.auth.token.file {tmp_path / 'none'}"]

    asyncio.run(run())


def test_the_start_line_names_what_everyone_may_read(tmp_path: Path) -> None:
    async def run() -> None:
        settings = {"metrics.listener": "0.0.0.0:0", "allow.insecure.listeners": "true"}
        async with serving(tmp_path, settings) as service:
            assert service.describe().endswith(", metrics open to the network without a login")

    asyncio.run(run())
