"""Both brokers with two listeners: one in plain text, one with TLS, a login and an authorizer behind it.

The keys are elliptic (P-256), the login is PLAIN, the user has one ACL for each resource, and the test's own
connections come in by the plain listener.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives import serialization
from tools.bench.brokers import OURS
from tools.bench.rows import OS
from tools.servers.apache_kafka import ApacheKafka
from tools.servers.broker_process import BrokerProcess, find_free_port, make_tallystick_process

USER, PASSWORD = "bench", "bench-secret"
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """A running broker, and how a client connects to each of its listeners."""

    process: BrokerProcess
    clients: Mapping[str, Mapping[str, str]]


@contextmanager
def run_secured(name: str) -> Iterator[SecuredBroker]:
    """Run a broker with empty directories, and remove them afterwards."""
    with TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as text:
        folder = Path(text)
        _write_keys(folder)
        plain, secure = find_free_port(), find_free_port()
        settings = {**_list_settings(folder, plain, secure), **(OS.ours if name == OURS else OS.kafka)}
        process = _prepare_ours(folder, plain, settings) if name == OURS else _prepare_kafka(folder, settings)
        with process:
            address = {"bootstrap.servers": f"127.0.0.1:{process.port}"}
            _grant(AdminClient(address))
            login = {
                "bootstrap.servers": f"localhost:{secure}",
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(folder / "ca.pem"),
                "sasl.mechanism": "PLAIN",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
            yield SecuredBroker(process, {"PLAINTEXT": address, "SASL_SSL": login})


def _prepare_ours(folder: Path, port: int, settings: Mapping[str, str]) -> BrokerProcess:
    process = make_tallystick_process(folder / "broker", settings, port=port)
    at = process.command.index("--listen")  # The settings name the listeners.
    del process.command[at : at + 2]
    return process


def _prepare_kafka(folder: Path, settings: Mapping[str, str]) -> BrokerProcess:
    kafka = ApacheKafka(directory=folder / "kafka", heap_mb=1024)
    (process,) = kafka.brokers
    config = folder / "kafka" / "node-1" / "server.properties"
    own = dict(line.partition("=")[::2] for line in config.read_text().splitlines())
    # The plain listener and the controller's keep their ports.
    secure = settings["listeners"].partition(",")[2]
    properties = {
        **own,
        **settings,
        "listeners": f"{own['listeners']},{secure}",
        "advertised.listeners": f"{own['advertised.listeners']},{secure.replace('127.0.0.1', 'localhost')}",
        "listener.security.protocol.map": f"{own['listener.security.protocol.map']},SECURE:SASL_SSL",
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    kafka.format()
    return process


def _list_settings(folder: Path, plain: int, secure: int) -> dict[str, str]:
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SECURE://127.0.0.1:{secure}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SECURE://localhost:{secure}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
        "listener.name.secure.ssl.keystore.type": "PEM",
        "listener.name.secure.ssl.keystore.location": str(folder / "broker.pem"),
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": f'{_MODULE} required user_{USER}="{PASSWORD}";',
        "authorizer.class.name": _AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }


def _write_keys(folder: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    leaf = ca.issue_cert("localhost")
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    # Java reads no other form of a key.
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    descriptor = os.open(folder / "broker.pem", os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem + b"".join(each.bytes() for each in leaf.cert_chain_pems))


def _grant(admin: AdminClient) -> None:
    acls = [
        AclBinding(
            kind,
            "bench-",
            ResourcePatternType.PREFIXED,
            f"User:{USER}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, operation in (
            (ResourceType.TOPIC, AclOperation.WRITE),
            (ResourceType.TOPIC, AclOperation.READ),
            (ResourceType.GROUP, AclOperation.READ),
            (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
        )
    ]
    for future in admin.create_acls(acls).values():
        future.result(30)
