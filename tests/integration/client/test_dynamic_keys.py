"""Keys of listeners changed by AlterConfigs: taken when they are good, refused as Kafka refuses them."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.x509.oid import NameOID
from tests.support.certificates import format_certificate, format_key, make_key_pair
from tests.support.memory_broker import MemoryBroker

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.handlers.cluster.alter_configs import AlterConfigOp
from tallystick.broker.handlers.cluster.config_view import ConfigResourceType, ConfigSource
from tallystick.broker.serve import Service
from tallystick.broker.server.listening import list_tls_states
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.settings import BadConfig
from tallystick.protocol.messages.cluster import alter_configs, incremental_alter_configs
from tallystick.protocol.messages.cluster.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

pytestmark = pytest.mark.server

PREFIX = "listener.name.ssl."
LOCATION = f"{PREFIX}ssl.keystore.location"
NODE = "1"
NEVER_MS = "86400000"


def write_pem(
    path: Path, *hosts: str, name: str = "broker", password: str | None = None, has_chain: bool = True
) -> str:
    """Write a new key with its certificate; return the path."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    key, certificate = make_key_pair(subject=subject, hosts=hosts or ("localhost",))
    path.write_text(format_key(key, password) + (format_certificate(certificate) if has_chain else ""))
    path.chmod(0o600)
    return str(path)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


class Desk:
    """A running broker with a plain listener and one with TLS."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._memory = MemoryBroker(service.broker)

    async def fetch_serial(self) -> int:
        """Return the serial number of the certificate that is shown to a new connection."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        port = self.service._server.addresses["SSL"][1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return x509.load_der_x509_certificate(shown).serial_number
        finally:
            await close(writer)

    async def alter(
        self, settings: Mapping[str, str | None], *, broker: str = NODE, validate_only: bool = False
    ) -> tuple[ErrorCode, str | None]:
        """Set the settings, delete those that are None; return code and message."""
        configs = tuple(
            incremental_alter_configs.AlterableConfig(
                name=name,
                config_operation=AlterConfigOp.DELETE if value is None else AlterConfigOp.SET,
                value=value,
            )
            for name, value in settings.items()
        )
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=ConfigResourceType.BROKER, resource_name=broker, configs=configs
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=(resource,), validate_only=validate_only
        )
        (answer,) = (await self._memory.ask(request, 1)).responses
        return ErrorCode(answer.error_code), answer.error_message

    async def replace(self, settings: Mapping[str, str]) -> ErrorCode:
        """Replace all dynamic settings of the broker."""
        configs = tuple(alter_configs.AlterableConfig(name=n, value=v) for n, v in settings.items())
        resource = alter_configs.AlterConfigsResource(
            resource_type=ConfigResourceType.BROKER, resource_name=NODE, configs=configs
        )
        request = alter_configs.AlterConfigsRequest(resources=(resource,), validate_only=False)
        (answer,) = (await self._memory.ask(request, 2)).responses
        return ErrorCode(answer.error_code)

    async def describe(self) -> dict[str, Any]:
        resource = DescribeConfigsResource(
            resource_type=ConfigResourceType.BROKER, resource_name=NODE, configuration_keys=None
        )
        request = DescribeConfigsRequest(
            resources=(resource,), include_synonyms=True, include_documentation=False
        )
        (result,) = (await self._memory.ask(request, 4)).results
        return {each.name: each for each in result.configs}


@asynccontextmanager
async def running(tmp_path: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[Desk]:
    (tmp_path / "data").mkdir(exist_ok=True)
    given = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        "log.reserve.bytes": "0",
        "ssl.keystore.location": str(tmp_path / "first.pem"),
        "ssl.reload.interval.ms": NEVER_MS,
        **(settings or {}),
    }
    service = Service(BrokerConfig.parse(given))
    await service.start()
    (tmp_path / "data/metadata.sqlite").chmod(0o600)
    try:
        async with asyncio.timeout(60):
            yield Desk(service)
    finally:
        await service.stop()


def serial_of(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def test_another_key_store_is_used_stored_and_used_again_after_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = tmp_path / "first.pem", tmp_path / "second.pem"

    async def run() -> None:
        write_pem(first)
        async with running(tmp_path) as desk:
            assert await desk.fetch_serial() == serial_of(first)
            assert await desk.alter({LOCATION: write_pem(second)}) == (ErrorCode.NONE, None)
            assert await desk.fetch_serial() == serial_of(second)
            shown = (await desk.describe())[LOCATION]
            assert (shown.value, shown.read_only, shown.is_sensitive) == (str(second), False, False)
            assert [(each.name, each.value, each.source) for each in shown.synonyms] == [
                (LOCATION, str(second), ConfigSource.BROKER),
                ("ssl.keystore.location", str(first), ConfigSource.STATIC),
                ("ssl.keystore.location", None, ConfigSource.DEFAULT),
            ]
        async with running(tmp_path) as desk:
            assert await desk.fetch_serial() == serial_of(second)
        first.unlink()  # as in Kafka, the start does not need what is not in use
        async with running(tmp_path) as desk:
            assert await desk.fetch_serial() == serial_of(second)
            code, why = await desk.alter({LOCATION: None})
            assert (code, "No such file" in str(why)) == (ErrorCode.INVALID_REQUEST, True)
            write_pem(first)
            assert await desk.replace({}) is ErrorCode.NONE
            assert await desk.fetch_serial() == serial_of(first)
            assert LOCATION not in await desk.describe()
        second.unlink()
        async with running(tmp_path) as desk:
            assert await desk.fetch_serial() == serial_of(first)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert "listener SSL: new keys are in use" in caplog.text


def test_the_same_file_set_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "first.pem"

    async def run() -> None:
        write_pem(path)
        async with running(tmp_path) as desk:
            before = await desk.fetch_serial()
            write_pem(path)
            assert await desk.fetch_serial() == before
            for _ in range(2):
                assert await desk.alter({LOCATION: str(path)}) == (ErrorCode.NONE, None)
                assert await desk.fetch_serial() == serial_of(path)
                write_pem(path)
            assert await desk.alter({"max.connections": "500"}) == (ErrorCode.NONE, None)
            assert await desk.fetch_serial() != serial_of(path)

    asyncio.run(run())


def test_a_change_that_is_only_validated_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        write_pem(tmp_path / "first.pem")
        async with running(tmp_path) as desk:
            before = await desk.fetch_serial()
            second = write_pem(tmp_path / "second.pem")
            assert await desk.alter({LOCATION: second}, validate_only=True) == (ErrorCode.NONE, None)
            code, _ = await desk.alter({LOCATION: "/none"}, validate_only=True)
            assert code is ErrorCode.INVALID_REQUEST
            assert await desk.fetch_serial() == before
            assert not desk.service.broker.dynamic_configs.get(NODE)

    asyncio.run(run())


@pytest.mark.gate(5)
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (LOCATION, "{dir}/none.pem", "No such file"),
        (LOCATION, "{dir}/bad.pem", "neither PEM nor PKCS12 nor JKS"),
        (LOCATION, "{dir}/keyonly.pem", "has a private key without its certificates"),
        (LOCATION, "{dir}/locked.pem", "ssl.key.password is missing"),
        (LOCATION, "{dir}/dn.pem", "would become one of CN=other (ssl.allow.dn.changes)"),
        (LOCATION, "{dir}/san.pem", "lacks 1 alternative names (ssl.allow.san.changes)"),
        (LOCATION, "", "Cannot remove the SSL keystore from an existing listener"),
        (f"{PREFIX}ssl.truststore.location", "{dir}/first.pem", "Cannot add SSL truststore to an existing"),
        (f"{PREFIX}ssl.keystore.type", "DSA", "'DSA' is not one of"),
        (f"{PREFIX}ssl.keystore.password", "geheim", "first.pem is PEM"),
        (f"{PREFIX}ssl.keystore.key", "geheim", "a private key needs its certificates"),
        (f"{PREFIX}ssl.client.auth", "none", "cannot be changed while the broker runs"),
        (f"{PREFIX}ssl.keystore.loctaion", "/x", "unknown setting; did you mean"),
        ("listener.name.other.ssl.keystore.location", "/x", "there is no such listener"),
        ("listener.name.plaintext.ssl.keystore.location", "{dir}/san.pem", "Cannot add SSL keystore"),
        ("ssl.keystore.location", "{dir}/first.pem", "only per-listener using the listener prefix"),
    ],
)
def test_what_cannot_be_used_is_refused_and_the_key_before_stays(
    tmp_path: Path, name: str, value: str, why: str
) -> None:
    async def run() -> None:
        write_pem(tmp_path / "first.pem", "localhost", "more")
        (tmp_path / "bad.pem").write_text("not a key")
        write_pem(tmp_path / "keyonly.pem", has_chain=False)
        write_pem(tmp_path / "locked.pem", "localhost", "more", password="geheim")
        write_pem(tmp_path / "dn.pem", "localhost", "more", name="other")
        write_pem(tmp_path / "san.pem", "localhost")
        async with running(tmp_path) as desk:
            before = await desk.fetch_serial()
            code, message = await desk.alter({name: value.format(dir=tmp_path)})
            assert code is ErrorCode.INVALID_REQUEST
            assert why in str(message)
            assert "geheim" not in str(message)
            assert await desk.fetch_serial() == before
            assert not desk.service.broker.dynamic_configs.get(NODE)
            assert not list_tls_states(desk.service._server.ports)[0].is_reload_failed

    asyncio.run(run())


def test_names_may_change_where_the_listener_allows_it(tmp_path: Path) -> None:
    async def run() -> None:
        write_pem(tmp_path / "first.pem", "localhost", "more")
        allowed = {"ssl.allow.dn.changes": "true", f"{PREFIX}ssl.allow.san.changes": "true"}
        async with running(tmp_path, allowed) as desk:
            other = write_pem(tmp_path / "other.pem", "localhost", name="other")
            assert await desk.alter({LOCATION: other}) == (ErrorCode.NONE, None)
            assert await desk.fetch_serial() == serial_of(tmp_path / "other.pem")

    asyncio.run(run())


def test_the_key_of_a_listener_is_no_setting_of_all_brokers(tmp_path: Path) -> None:
    async def run() -> None:
        write_pem(tmp_path / "first.pem")
        async with running(tmp_path) as desk:
            code, why = await desk.alter({LOCATION: str(tmp_path / "first.pem")}, broker="")
            assert code is ErrorCode.INVALID_REQUEST
            assert "Cannot update these configs at default cluster level, broker id must be specified" in str(
                why
            )

    asyncio.run(run())


def test_passwords_are_stored_for_the_broker_alone_and_never_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        write_pem(tmp_path / "first.pem")
        locked = write_pem(tmp_path / "locked.pem", password="geheim")
        settings = {LOCATION: locked, f"{PREFIX}ssl.key.password": "geheim"}
        async with running(tmp_path) as desk:
            before = await desk.fetch_serial()
            (tmp_path / "data/metadata.sqlite").chmod(0o640)
            code, why = await desk.alter(settings)
            assert code is ErrorCode.INVALID_REQUEST
            assert "where others can read it" in str(why)
            assert await desk.fetch_serial() == before
            (tmp_path / "data/metadata.sqlite").chmod(0o600)
            code, why = await desk.alter(settings | {f"{PREFIX}ssl.key.password": "geheim2"})
            assert (code, "ssl.key.password does not open" in str(why)) == (ErrorCode.INVALID_REQUEST, True)
            assert await desk.alter(settings) == (ErrorCode.NONE, None)
            assert await desk.fetch_serial() == serial_of(tmp_path / "locked.pem")
            shown = (await desk.describe())[f"{PREFIX}ssl.key.password"]
            assert (shown.value, shown.is_sensitive) == (None, True)
            assert {each.value for each in shown.synonyms} == {None}
            assert "geheim" not in repr(await desk.describe()) + repr(desk.service.broker.config)
        async with running(tmp_path) as desk:
            assert await desk.fetch_serial() == serial_of(tmp_path / "locked.pem")

    with caplog.at_level(logging.DEBUG):
        asyncio.run(run())
    assert "geheim" not in caplog.text


def test_a_trust_store_decides_who_comes_in_next(tmp_path: Path) -> None:
    ours, theirs = trustme.CA(), trustme.CA()

    async def reaches(desk: Desk, authority: trustme.CA) -> bool:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        authority.issue_cert("client").configure_cert(context)
        port = desk.service._server.addresses["SSL"][1]
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        except OSError:
            return False
        try:
            writer.write(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
            await reader.readexactly(4)
        except (OSError, asyncio.IncompleteReadError):
            return False
        finally:
            await close(writer)
        return True

    async def run() -> None:
        write_pem(tmp_path / "first.pem")
        ours.cert_pem.write_to_path(str(tmp_path / "ours.pem"))
        theirs.cert_pem.write_to_path(str(tmp_path / "theirs.pem"))
        settings = {"ssl.client.auth": "required", "ssl.truststore.location": str(tmp_path / "ours.pem")}
        async with running(tmp_path, settings) as desk:
            assert (await reaches(desk, ours), await reaches(desk, theirs)) == (True, False)
            change = {f"{PREFIX}ssl.truststore.location": str(tmp_path / "theirs.pem")}
            assert await desk.alter(change) == (ErrorCode.NONE, None)
            assert (await reaches(desk, ours), await reaches(desk, theirs)) == (False, True)

    asyncio.run(run())


def test_stored_keys_that_are_gone_stop_the_start_and_those_of_a_gone_listener_do_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file of the settings is not used instead: it may trust clients that were shut out since."""

    async def run() -> None:
        write_pem(tmp_path / "first.pem")
        second = tmp_path / "second.pem"
        async with running(tmp_path) as desk:
            assert await desk.alter({LOCATION: write_pem(second)}) == (ErrorCode.NONE, None)
        second.unlink()
        with pytest.raises(BadConfig) as caught:
            async with running(tmp_path):
                pass
        assert "second.pem: No such file" in str(caught.value)
        assert f"set while the broker ran, and stronger than its configuration: {LOCATION}" in str(
            caught.value
        )
        async with running(tmp_path, {"listeners": "PLAINTEXT://127.0.0.1:0"}):
            pass

    asyncio.run(run())
    assert f"stored settings of listeners that are gone are ignored: {LOCATION}" in caplog.text


async def check_limits_of_a_listener_and_of_a_host(desk: Desk) -> None:
    overrides, of_listener = "max.connections.per.ip.overrides", "listener.name.ssl.max.connections"
    server = desk.service._server
    assert await desk.alter({"max.connections": None, overrides: "localhost:2"}) == (ErrorCode.NONE, None)
    assert server.find_refusal("SSL", "127.0.0.1", 5, 5) == f"{overrides} is 2"
    assert await desk.alter({of_listener: "3"}) == (ErrorCode.NONE, None)
    assert server.find_refusal("SSL", "127.0.0.2", 3, 0) == f"{of_listener} is 3"
    shown = (await desk.describe())[of_listener]
    assert (shown.value, shown.read_only) == ("3", False)
    assert [each.name for each in shown.synonyms] == [of_listener, "max.connections"]
    for wrong in ({of_listener: "0"}, {overrides: "127.0.0.1"}, {"listener.name.no.max.connections": "1"}):
        code, why = await desk.alter(wrong)
        assert (code, bool(why)) == (ErrorCode.INVALID_REQUEST, True)
    assert await desk.alter({of_listener: None, overrides: None}) == (ErrorCode.NONE, None)
    assert server.find_refusal("SSL", "127.0.0.1", 5, 5) is None


def test_limits_that_were_changed_are_in_force_after_a_start(tmp_path: Path) -> None:
    async def run() -> None:
        write_pem(tmp_path / "first.pem")
        async with running(tmp_path) as desk:
            assert await desk.alter({"max.connections": "1"}) == (ErrorCode.NONE, None)
        async with running(tmp_path) as desk:
            assert await desk.fetch_serial()
            assert desk.service._server.find_refusal("SSL", "127.0.0.1", 5, 5) == "max.connections is 1"
            await check_limits_of_a_listener_and_of_a_host(desk)

    asyncio.run(run())
