"""The table of rights on our broker and on Apache Kafka, over SASL_SSL: both answer a principal the same.

Every case has a principal of its own, so that all ACLs are there before the first request.
"""

import re
import ssl
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import trustme
from tests.support.rights import (
    DENIALS,
    EVERYTHING,
    GROUP,
    ID,
    ON_TOPIC,
    TOPIC,
    Right,
    Row,
    build,
    iter_codes,
    rename,
)
from tests.support.rights_table import ROWS
from tests.support.rights_views import OPEN_ID, OTHER_GROUP, OTHER_TOPIC, VIEWS, TopicIds, View, committed_at
from tests.support.secure_kafka import SecureKafka, format_plain_users
from tests.support.secure_wire import SecureConnection
from tools.servers import apache_kafka
from tools.servers.broker_process import find_free_port

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.config.broker_config import STANDARD_AUTHORIZER
from tallystick.kernel.codes import ErrorCode as E
from tallystick.protocol.acls import AclPermission
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.security.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.gate(0), pytest.mark.kafka, pytest.mark.server]

PASSWORD = "secret"
SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    # The nodes of Kafka speak to each other over a listener without logins.
    "super.users": "User:admin;User:ANONYMOUS",
    "transaction.two.phase.commit.enable": "true",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
LOADING = {E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR}
# These take away what other rows ask about.
LAST = (
    "delete-groups",
    "offset-delete-group",
    "offset-delete-topic",
    "delete-topics-not-described",
    "delete-topics",
)
# What differs with every broker, and the texts of errors.
OWN_FIELDS = {"error_message", "throttle_time_ms", "brokers", "cluster_id", "controller_id"}

# Fields of denials that differ from Kafka's, by row; the reasons are in docs/differences-from-kafka.md.
OTHER_FIELDS = {"create-topics-configs": {"topic_id"}}  # With validate_only Kafka makes one up.
# Rows whose request has another outcome than in Kafka where the right is there.
OTHER_OUTCOMES = {"fetch-as-a-replica"}  # Kafka does not know a replica 2. Here there are none.


class Cluster:
    """A broker, by the connections of its principals."""

    def __init__(self, address: str, authority: trustme.CA) -> None:
        self._address = address
        self._context = ssl.create_default_context()
        authority.configure_trust(self._context)
        self.topic_ids: TopicIds = {}

    def ask(self, principal: str, request: object, version: int) -> Any:
        with SecureConnection(self._address, self._context, principal, PASSWORD) as connection:
            return connection.ask_any(request, version)

    def prepare(self) -> None:
        """Create ACLs, topics, groups and transactions, as a super user."""
        with SecureConnection(self._address, self._context, "admin", PASSWORD) as admin:

            def succeed(key: ApiKey, version: int, **content: Any) -> Any:
                answers: list[Any] = []

                def is_done() -> bool:
                    answers.append(admin.ask_any(build(key, content), version))
                    codes = set(iter_codes(answers[-1]))
                    assert codes <= LOADING | {E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION}, answers[-1]
                    return codes <= {E.NONE}

                eventually(is_done, 60)
                return answers[-1]

            succeed(ApiKey.CREATE_ACLS, 3, creations=list_acls())
            shape = {"num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
            topics = [{"name": name, **shape} for name in (TOPIC, OTHER_TOPIC)]
            created = succeed(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout_ms=30_000)
            self.topic_ids = {topic.name: topic.topic_id for topic in created.topics}
            succeed(ApiKey.METADATA, 12, topics=[{"name": topic["name"]} for topic in topics])
            for group in (GROUP, OTHER_GROUP):
                succeed(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group])
                committed = committed_at(TOPIC, OTHER_TOPIC)
                succeed(ApiKey.OFFSET_COMMIT, 8, group_id=group, member_id="", topics=committed)
            for name in (ID, OPEN_ID):
                succeed(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[name])
                init = succeed(
                    ApiKey.INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout_ms=60_000
                )
            succeed(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                3,
                v3_and_below_transactional_id=OPEN_ID,
                v3_and_below_producer_id=init.producer_id,
                v3_and_below_producer_epoch=init.producer_epoch,
                v3_and_below_topics=[{"name": name, "partitions": [0]} for name in (TOPIC, OTHER_TOPIC)],
            )


class Case:
    """One request of one principal."""

    def __init__(
        self, name: str, request: object, version: int, allowed: Iterable[Right], denied: Iterable[Right] = ()
    ) -> None:
        self.name, self.request, self.version = name, request, version
        self.allowed, self.denied = tuple(allowed), tuple(denied)


def list_denied_cases(row: Row) -> Iterator[Case]:
    """A principal with everything but the right, and with everything but the right on what does not exist."""
    yield Case(f"{row.name}-denied", row.request(TOPIC), row.version, EVERYTHING, row.rights)
    if row.is_absent:
        absent = row.request("absent")
        yield Case(f"{row.name}-absent", absent, row.version, EVERYTHING, rename(row.rights))


def list_allowed_cases(row: Row) -> Iterator[Case]:
    """A principal with the right alone, for each that suffices."""
    for number, right in enumerate(row.rights):
        name = f"{row.name}-allowed-{number}"
        yield Case(name, row.request(TOPIC), row.version, (right, *row.others))


def list_acls() -> list[dict[str, Any]]:
    cases = [case for row in ROWS for each in (list_denied_cases, list_allowed_cases) for case in each(row)]
    granted = [
        *(
            (case.name, permission, right)
            for case in cases
            for permission, rights in (
                (AclPermission.ALLOW, case.allowed),
                (AclPermission.DENY, case.denied),
            )
            for right in rights
        ),
        *((view.name, AclPermission.ALLOW, right) for view in VIEWS for right in view.rights),
        # A super user may do it all the same.
        ("admin", AclPermission.DENY, (Operation.ALL, ON_TOPIC)),
    ]
    return [
        {
            "resource_type": resource.resource_type,
            "resource_name": resource.name,
            "resource_pattern_type": resource.pattern_type,
            "principal": f"User:{principal}",
            "host": "*",
            "operation": operation,
            "permission_type": permission,
        }
        for principal, permission, (operation, resource) in granted
    ]


def list_users() -> dict[str, str]:
    cases = [
        case.name for row in ROWS for each in (list_denied_cases, list_allowed_cases) for case in each(row)
    ]
    return dict.fromkeys(["admin", *cases, *(view.name for view in VIEWS)], PASSWORD)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cluster]]:
    """Ours and Kafka, prepared alike."""
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    folder = tmp_path_factory.mktemp("rights")
    # InitProducerId 6 is hidden otherwise.
    settings = {**SETTINGS, "unstable.api.versions.enable": "true"}
    node = apache_kafka.ApacheKafka(directory=folder, settings=settings, heap_mb=384)
    kafka = SecureKafka(node, folder, users=list_users())
    kafka.configure()
    port = find_free_port()
    ours = {
        **SETTINGS,
        "listeners": f"SASL_SSL://127.0.0.1:{port}",
        "advertised.listeners": f"SASL_SSL://localhost:{port}",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.keystore.type": "PEM",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": format_plain_users(list_users()),
    }
    with node, EmbeddedBroker(folder / "tallystick", config=ours):
        both = {
            "tallystick": Cluster(f"localhost:{port}", kafka.ca),
            "kafka": Cluster(kafka.address("SECURE"), kafka.ca),
        }
        for cluster in both.values():
            cluster.prepare()
        yield both


Asked = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def answers(prepared: dict[str, Cluster]) -> Asked:
    """All answers of both, by the names of the cases. What changes the cluster comes last."""
    rows = sorted(ROWS, key=lambda row: LAST.index(row.name) if row.name in LAST else -1)
    asked: Asked = {}
    for broker, cluster in prepared.items():
        taken = asked.setdefault(broker, {})
        for view in VIEWS:
            taken[view.name] = cluster.ask(view.name, view.request(cluster.topic_ids), view.version)
        for list_cases in (list_denied_cases, list_allowed_cases):
            for row in rows:
                for case in list_cases(row):
                    taken[case.name] = cluster.ask(case.name, case.request, case.version)
    return asked


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_denial_is_the_same(answers: Asked, row: Row) -> None:
    """Not only the code and its place: every field of the answer."""
    for case in list_denied_cases(row):
        ours, kafkas = answers["tallystick"][case.name], answers["kafka"][case.name]
        assert set(row.places(kafkas)) == {row.code}, kafkas
        hidden = OWN_FIELDS | OTHER_FIELDS.get(row.name, set())
        assert describe(ours, hidden) == describe(kafkas, hidden)
    if row.is_absent:
        for taken in answers.values():
            denied, absent = (
                describe(taken[f"{row.name}-{each}"], OWN_FIELDS) for each in ("denied", "absent")
            )
            assert re.sub("'absent'", f"'{TOPIC}'", repr(absent)) == repr(denied)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_right_is_enough(answers: Asked, row: Row) -> None:
    differing = False
    for case in list_allowed_cases(row):
        both = [answers[broker][case.name] for broker in ("tallystick", "kafka")]
        for answer in both:
            assert DENIALS.isdisjoint(iter_codes(answer)), answer
        ours, kafkas = (list(iter_described_codes(describe(answer, OWN_FIELDS))) for answer in both)
        differing |= ours != kafkas
        assert ours == kafkas or row.name in OTHER_OUTCOMES, (ours, kafkas)
    assert differing == (row.name in OTHER_OUTCOMES), "OTHER_OUTCOMES names a row that is the same"


@pytest.mark.parametrize("view", VIEWS, ids=[view.name for view in VIEWS])
def test_a_view_is_the_same(prepared: dict[str, Cluster], answers: Asked, view: View) -> None:
    for broker, taken in answers.items():
        assert view.pick(taken[view.name]) == view.expected(prepared[broker].topic_ids), broker


@pytest.mark.parametrize(
    ("asked", "version"),
    [
        (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (SaslAuthenticateRequest(auth_bytes=b"\0admin\0secret"), 2),
    ],
    ids=["handshake", "authenticate"],
)
def test_a_second_login_is_refused_alike(prepared: dict[str, Cluster], asked: object, version: int) -> None:
    """Without connections.max.reauth.ms a session has one login (KIP-368)."""
    ours, kafkas = (
        describe(cluster.ask(VIEWS[0].name, asked, version), OWN_FIELDS) for cluster in prepared.values()
    )
    assert ours == kafkas
    assert isinstance(kafkas, dict)
    assert kafkas["error_code"] == E.ILLEGAL_SASL_STATE


def describe(value: Any, hidden: set[str]) -> object:
    """Return an answer as builtins, without the hidden fields.

    Entries are in the order of their contents: Kafka's is that of a hash map. Null is the same as empty: no
    client tells them apart.
    """
    if isinstance(value, tuple):
        return sorted((describe(each, hidden) for each in value), key=repr) or None
    if isinstance(value, bytes | memoryview):
        return bytes(value) or None
    if not hasattr(value, "__struct_fields__"):
        return value
    fields = value.__struct_fields__
    return {field: describe(getattr(value, field), hidden) for field in fields if field not in hidden}


def iter_described_codes(described: object) -> Iterator[tuple[str, object]]:
    """Yield every error code of a described answer, with the name of its field."""
    if isinstance(described, list):
        for each in described:
            yield from iter_described_codes(each)
    elif isinstance(described, dict):
        for field, inside in described.items():
            if field.endswith("error_code"):
                yield field, inside
            yield from iter_described_codes(inside)
