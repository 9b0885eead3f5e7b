"""Our broker with a listener for every way to log in, ACLs, and what clients need to use it."""

import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
from tests.support.identity_provider import AUDIENCE, ISSUER, IdentityProvider
from tests.support.secure_kafka import (
    MODULES,
    PASSWORD,
    create_scram_users,
    escape,
    format_plain_users,
    to_pkcs8,
)
from tests.support.secure_wire import SecureConnection
from tools.servers.broker_process import find_free_port

from tallystick.broker.config.broker_config import STANDARD_AUTHORIZER
from tallystick.testing import EmbeddedBroker

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
CERTIFICATE = "certificate"
LOGINS = (*MECHANISMS, CERTIFICATE)
USERS = ("admin", "alice")


@dataclass
class BrokerWithLogins:
    """A running broker; admin is a super user, alice may do what ACLs allow her. Each by every login."""

    folder: Path
    sasl_port: int
    mutual_port: int

    def address(self, login: str) -> str:
        return f"localhost:{self.mutual_port if login == CERTIFICATE else self.sasl_port}"

    def token_url(self, user: str) -> str:
        return f"file://{self.folder}/{user}.jwt"

    def java_config(self, login: str, user: str) -> dict[str, str]:
        """Settings of Kafka's clients in Java."""
        config = {
            "bootstrap.servers": self.address(login),
            "security.protocol": "SSL" if login == CERTIFICATE else "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
        }
        if login == CERTIFICATE:
            key = str(self.folder / f"{user}.pem")
            return {**config, "ssl.keystore.type": "PEM", "ssl.keystore.location": key}
        config["sasl.mechanism"] = login
        if login == "OAUTHBEARER":
            package = f"{MODULES}.oauthbearer"
            return {
                **config,
                "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
                "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.token.endpoint.url": self.token_url(user),
            }
        module = "plain.PlainLoginModule" if login == "PLAIN" else "scram.ScramLoginModule"
        quoted = PASSWORD.replace('"', '\\"')
        jaas = f'{MODULES}.{module} required username="{user}" password="{quoted}";'
        return {**config, "sasl.jaas.config": jaas}

    def librdkafka_config(self, login: str, user: str) -> dict[str, Any]:
        """Settings of librdkafka's clients."""
        config: dict[str, Any] = {
            "bootstrap.servers": self.address(login),
            "security.protocol": "SSL" if login == CERTIFICATE else "SASL_SSL",
            "ssl.ca.location": str(self.folder / "ca.pem"),
        }
        if login == CERTIFICATE:
            key = str(self.folder / f"{user}.pem")
            return {**config, "ssl.certificate.location": key, "ssl.key.location": key}
        config["sasl.mechanism"] = login
        if login == "OAUTHBEARER":
            token = (self.folder / f"{user}.jwt").read_text()
            return {**config, "oauth_cb": lambda _: (token, 2e9)}
        return {**config, "sasl.username": user, "sasl.password": PASSWORD}

    def write_command_config(self, login: str, user: str) -> str:
        """Write a file for `--command-config`, and return its path."""
        path = self.folder / f"{login}-{user}.properties"
        config = self.java_config(login, user)
        path.write_text("".join(f"{name}={escape(value)}\n" for name, value in config.items()))
        return str(path)


@contextlib.contextmanager
def run_broker_with_logins(folder: Path) -> Iterator[BrokerWithLogins]:
    """Run the broker with its certificates, users and tokens in `folder`."""
    authority, provider = trustme.CA(), IdentityProvider()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    (folder / "jwks.json").write_bytes(provider.format_jwks())
    for name, leaf in (
        ("broker", authority.issue_cert("localhost")),
        *((user, authority.issue_cert(f"{user}@example.com", common_name=user)) for user in USERS),
    ):
        leaf.private_key_and_cert_chain_pem.write_to_path(str(folder / f"{name}.pem"))
        to_pkcs8(folder / f"{name}.pem")
    for user in USERS:
        (folder / f"{user}.jwt").write_text(provider.sign(life_s=7_200, sub=user))
    made = BrokerWithLogins(folder, find_free_port(), find_free_port())
    ports = {"SASL_SSL": made.sasl_port, "SSL": made.mutual_port}
    config = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "advertised.listeners": ",".join(f"{name}://localhost:{port}" for name, port in ports.items()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": format_plain_users(dict.fromkeys(USERS, PASSWORD)),
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{folder}/jwks.json",
        "sasl.oauthbearer.allowed.files": str(folder / "jwks.json"),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin",
    }
    with EmbeddedBroker(folder / "data", config=config):
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with SecureConnection(made.address("PLAIN"), context, "admin", PASSWORD) as admin:
            create_scram_users(admin, USERS)
        yield made
