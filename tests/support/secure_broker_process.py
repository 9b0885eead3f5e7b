"""A broker process whose applications log in over TLS and have only the rights that they need.

The test itself uses a plain listener on the loopback, as a super user: it checks what the application did.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import trustme
from tools.servers.broker_process import BrokerProcess, find_free_port

from tallystick import Admin
from tallystick.admin import Acl, AclOperation, AclPattern, AclResource
from tallystick.spark.options.option_table import DECISIONS_TOPIC

USER: Final = "app"
# What a JAAS string quotes, and a part that looks the same however it is quoted and escaped.
SECRET: Final = "9f2c;open=same"
PASSWORD: Final = f'a"b{SECRET}\\'
SESSION_MS: Final = 2_000
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_QUOTED: Final = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')


class SecureBroker(BrokerProcess):
    """The broker. A session of an application lasts two seconds, then the client has to renew it."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        """Write the broker's settings and its first certificate into `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.app_port = find_free_port()
        self.rotation_count = 0
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(str(directory / "ca.pem"))
        port = find_free_port()
        config = directory / "server.properties"
        config.write_text("".join(self._format_settings(port, settings or {})))
        program = Path(sys.executable).with_name("tallystick")
        command = [str(program), "broker", "--data-dir", str(directory / "data"), "--config", str(config)]
        super().__init__("tallystick", command, port=port, log=directory / "broker.log")
        self.rotate()

    def _format_settings(self, port: int, settings: Mapping[str, str]) -> Iterator[str]:
        texts = {
            "listeners": f"TEST://127.0.0.1:{port},APP://127.0.0.1:{self.app_port}",
            "advertised.listeners": f"TEST://127.0.0.1:{port},APP://localhost:{self.app_port}",
            "listener.security.protocol.map": "TEST:PLAINTEXT,APP:SASL_SSL",
            "listener.name.app.ssl.keystore.type": "PEM",
            "listener.name.app.ssl.keystore.location": str(self.directory / "broker.pem"),
            "listener.name.app.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.app.plain.sasl.jaas.config": f'{_MODULE} required user_{USER}="{_QUOTED}";',
            "listener.name.app.connections.max.reauth.ms": str(SESSION_MS),
            "listener.name.app.ssl.reload.interval.ms": "100",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            **settings,
        }
        for name, text in texts.items():
            escaped = text.replace("\\", "\\\\")
            yield f"{name}={escaped}\n"

    @property
    def client(self) -> dict[str, str]:
        """The settings of an application."""
        return {
            "bootstrap.servers": f"localhost:{self.app_port}",
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.directory / "ca.pem"),
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{_MODULE} required username="{USER}" password="{_QUOTED}";',
        }

    def rotate(self) -> None:
        """Replace the broker's key and certificate; connections that exist are kept."""
        self.rotation_count += 1
        leaf = self._ca.issue_cert("localhost", organization_unit_name="broker")
        new = self.directory / "broker.pem.new"
        leaf.private_key_and_cert_chain_pem.write_to_path(str(new))
        os.replace(new, self.directory / "broker.pem")

    def count_reloads(self) -> int:
        """Return how many of the new certificates the broker has taken."""
        return self.log.read_text(errors="replace").count("new keys are in use")

    def grant(self, resource: AclResource, name: str, *operations: AclOperation) -> None:
        """Give the application rights on the resources with this prefix."""
        with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            admin.create_acls(
                Acl(
                    resource=resource,
                    name=name,
                    pattern=AclPattern.PREFIXED,
                    principal=f"User:{USER}",
                    operation=operation,
                )
                for operation in operations
            ).all()

    def grant_dual_writer(self, transactional_id_prefix: str, topic_prefix: str) -> None:
        """Give what `docs/security.md` says that a dual writer in mode `2pc` needs."""
        writing = AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT
        self.grant(AclResource.TRANSACTIONAL_ID, transactional_id_prefix, *writing)
        self.grant(AclResource.TOPIC, topic_prefix, AclOperation.WRITE)

    def grant_query(self, transactional_id_prefix: str, source: str, sink: str) -> None:
        """Give what `docs/security.md` says that a query of Spark from topics to a topic needs."""
        self.grant_dual_writer(transactional_id_prefix, sink)
        self.grant(AclResource.TOPIC, source, AclOperation.READ)
        # Spark's sink makes the topic of decisions if it is missing, and checks its settings.
        on_decisions = (
            AclOperation.CREATE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.READ,
            AclOperation.WRITE,
        )
        self.grant(AclResource.TOPIC, DECISIONS_TOPIC, *on_decisions)
