"""Apache Kafka with TLS and logins: three listeners beside the plain one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from tests.support.raw_wire import RawConnection
from tools.servers import apache_kafka
from tools.servers.broker_process import find_free_port

from tallystick.protocol.messages.security.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from tallystick.security.sasl.scram import SCRAM_MECHANISMS, compute_salted_password

PASSWORD = "pa,ss=wörd;\"'"
SALT = b"0123456789abcdef"
SESSION_MS = 2_000
MODULES = "org.apache.kafka.common.security"
LISTENERS = {"SECURE": "SASL_SSL", "SHORT": "SASL_SSL", "MUTUAL": "SSL", "CLEAR": "SASL_PLAINTEXT"}


@dataclass
class SecureKafka:
    """A node, its authority, and an address for each listener."""

    node: apache_kafka.ApacheKafka
    folder: Path
    ca: trustme.CA = field(default_factory=trustme.CA)
    ports: dict[str, int] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=lambda: {"alice": PASSWORD})
    """Names and passwords for PLAIN."""
    _topic_count: int = 0

    def address(self, listener: str) -> str:
        if listener == "PLAINTEXT":
            return self.node.bootstrap.replace("127.0.0.1", "localhost")
        return f"localhost:{self.ports[listener]}"

    def fresh_name(self) -> str:
        self._topic_count += 1
        return f"topic-{self._topic_count}"

    @property
    def tls(self) -> dict[str, str]:
        return {"ssl.truststore.location": str(self.folder / "ca.pem")}

    @property
    def client_key(self) -> dict[str, str]:
        return {"ssl.keystore.location": str(self.folder / "client.pem")}

    def configure(self) -> None:
        """Write the certificates, and add the listeners to the node's configuration."""
        self.ca.cert_pem.write_to_path(str(self.folder / "ca.pem"))
        for name, leaf in (
            ("broker", self.ca.issue_cert("localhost")),
            ("client", self.ca.issue_cert("client@example.com", common_name="client")),
        ):
            leaf.private_key_and_cert_chain_pem.write_to_path(str(self.folder / f"{name}.pem"))
            to_pkcs8(self.folder / f"{name}.pem")
        self.ports = {name: find_free_port() for name in LISTENERS}
        config = self.folder / "node-1" / "server.properties"
        text = config.read_text()
        before = dict(line.partition("=")[::2] for line in text.splitlines())
        more = {
            "listeners": before["listeners"],
            "advertised.listeners": before["advertised.listeners"],
            "listener.security.protocol.map": before["listener.security.protocol.map"],
        }
        for name, protocol in LISTENERS.items():
            more["listeners"] += f",{name}://127.0.0.1:{self.ports[name]}"
            more["advertised.listeners"] += f",{name}://{self.address(name)}"
            more["listener.security.protocol.map"] += f",{name}:{protocol}"
            more.update(self._list_listener_settings(f"listener.name.{name.lower()}.", protocol))
        more["listener.name.short.connections.max.reauth.ms"] = str(SESSION_MS)
        more["listener.name.mutual.ssl.client.auth"] = "required"
        config.write_text(text + "".join(f"{name}={escape(value)}\n" for name, value in more.items()))

    def _list_listener_settings(self, prefix: str, protocol: str) -> dict[str, str]:
        made: dict[str, str] = {}
        if protocol.endswith("SSL"):
            made |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.folder / "broker.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.folder / "ca.pem"),
            }
        if protocol.startswith("SASL"):
            made |= {
                "sasl.enabled.mechanisms": ",".join(("PLAIN", "OAUTHBEARER", *SCRAM_MECHANISMS)),
                "plain.sasl.jaas.config": format_plain_users(self.users),
                "oauthbearer.sasl.jaas.config": (
                    f"{MODULES}.oauthbearer.OAuthBearerLoginModule required "
                    'unsecuredLoginStringClaim_sub="broker";'
                ),
                **{
                    f"{name.lower()}.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;"
                    for name in SCRAM_MECHANISMS
                },
            }
        return {prefix + name: value for name, value in made.items()}

    def create_users(self) -> None:
        """Give alice a password for SCRAM: we salt it, and Kafka keeps the keys that it derives."""
        with RawConnection(self.node.bootstrap) as connection:
            create_scram_users(connection, ["alice"])


def create_scram_users(connection: RawConnection, names: Iterable[str]) -> None:
    """Give users PASSWORD for every mechanism of SCRAM."""
    for mechanism in SCRAM_MECHANISMS.values():  # A request has each user once.
        made = tuple(
            ScramCredentialUpsertion(
                name=name,
                mechanism=mechanism.number,
                iterations=4096,
                salt=SALT,
                salted_password=compute_salted_password(mechanism, PASSWORD, SALT, 4096),
            )
            for name in names
        )
        request = AlterUserScramCredentialsRequest(upsertions=made)
        results = connection.ask(request, AlterUserScramCredentialsResponse, 0).results
        assert {result.error_code for result in results} == {0}, results


def format_plain_users(users: Mapping[str, str]) -> str:
    """Return the `sasl.jaas.config` of a listener that knows these users and passwords."""
    quoted = {name: password.replace("\\", "\\\\").replace('"', '\\"') for name, password in users.items()}
    listed = " ".join(f'user_{name}="{password}"' for name, password in quoted.items())
    return f"{MODULES}.plain.PlainLoginModule required {listed};"


def escape(value: str) -> str:
    """Write a value as a file of Java's properties takes it."""
    return (
        value.replace("\\", "\\\\").encode("ascii", "backslashreplace").decode().replace("\\xf6", "\\u00f6")
    )


def to_pkcs8(path: Path) -> None:
    """Rewrite a key and its certificates so that Java reads them."""
    blocks = path.read_bytes()
    key = serialization.load_pem_private_key(blocks, None)
    chain = blocks[blocks.index(b"-----BEGIN CERTIFICATE") :]
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + chain
    )
