"""Security settings of clients: three dialects, one meaning; and every mistake is a problem of its own."""

import pickle
import ssl
from collections.abc import Mapping

import pytest

from tallystick.client.settings.config import AdminConfig, ClientConfig, ProducerConfig, is_client_setting
from tallystick.dualwrite.block.branch import ClusterBranch
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig
from tallystick.security.sasl.settings import ClientCredentials, SaslLogin

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SECRET = "hunter2;=\"'"
QUOTED = SECRET.replace('"', '\\"')


def parse(**given: object) -> ClientConfig:
    return parse_named({name.replace("_", "."): value for name, value in given.items()})


def parse_named(given: Mapping[str, object]) -> ClientConfig:
    return AdminConfig.parse({"bootstrap.servers": "b:9092", **given}).client


def problems(given: Mapping[str, object]) -> list[str]:
    with pytest.raises(BadConfig) as caught:
        parse_named(given)
    assert "hunter2" not in str(caught.value)
    return str(caught.value).splitlines()


JAVA = {
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f'{PLAIN_MODULE} required username="u" password="{QUOTED}";',
    "ssl.truststore.location": "/ca.pem",
}
LIBRDKAFKA = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "PLAIN",
    "sasl.username": "u",
    "sasl.password": SECRET,
    "ssl.ca.location": "/ca.pem",
}
KAFKA_PYTHON = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "u",
    "sasl_plain_password": SECRET,
    "ssl_cafile": "/ca.pem",
}


@pytest.mark.parametrize(
    "given", [JAVA, LIBRDKAFKA, KAFKA_PYTHON], ids=["Java", "librdkafka", "kafka-python"]
)
def test_the_dialects_mean_the_same(given: Mapping[str, str]) -> None:
    config = parse_named(given)
    security = config.security
    assert config.security_protocol == security.protocol == "SASL_SSL"
    assert (security.has_tls, security.has_sasl) == (True, True)
    assert security.sasl.login == SaslLogin(mechanism="PLAIN", username="u", password=Secret(SECRET))
    assert security.tls.ssl_truststore_location == "/ca.pem"
    assert "hunter2" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config
    assert all(is_client_setting(name) for name in given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"ssl_certfile": "/c.pem", "ssl_keyfile": "/k.pem", "ssl_password": "p"},
            {"ssl_certificate_location": "/c.pem", "ssl_key_location": "/k.pem", "ssl_key_password": "p"},
        ),
        ({"ssl_certfile": "/both.pem"}, {"ssl_keystore_location": "/both.pem"}),
        (
            {"ssl.certificate.location": "/c.pem", "ssl.key.location": "/k.pem"},
            {"ssl_certificate_location": "/c.pem", "ssl_key_location": "/k.pem"},
        ),
        (
            {"ssl.certificate.pem": "CHAIN", "ssl.key.pem": "KEY", "ssl.ca.pem": "CA"},
            {
                "ssl_keystore_certificate_chain": "CHAIN",
                "ssl_keystore_key": "KEY",
                "ssl_truststore_certificates": "CA",
            },
        ),
        ({"ssl_check_hostname": False}, {"ssl_endpoint_identification_algorithm": "none"}),
        ({"ssl_check_hostname": True}, {"ssl_endpoint_identification_algorithm": "https"}),
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl_endpoint_identification_algorithm": ""}),
        ({"ssl_ciphers": "A:B"}, {"ssl_cipher_suites": ("A", "B")}),
        ({"enable.ssl.certificate.verification": True}, {}),
    ],
)
def test_tls_in_other_dialects(given: Mapping[str, object], expected: Mapping[str, object]) -> None:
    tls = parse_named({"security.protocol": "SSL", **given}).security.tls
    for name, value in expected.items():
        content = getattr(tls, name)
        assert (content.reveal() if isinstance(content, Secret) else content) == value


def test_a_made_context_is_used_as_it_is() -> None:
    context = ssl.create_default_context()
    security = parse_named({"security.protocol": "SSL", "ssl_context": context}).security
    assert security.ssl_context is context
    found = problems({"security.protocol": "SSL", "ssl_context": context, "ssl.ca.location": "/ca"})
    assert found == ["ssl.truststore.location: ssl_context is set, too: give TLS in one way"]
    assert problems({"security.protocol": "SSL", "ssl_context": "x"}) == [
        "ssl_context: must be an ssl.SSLContext"
    ]


SASL = {"security.protocol": "SASL_SSL"}
SCRAM = {**SASL, "sasl.mechanism": "SCRAM-SHA-512"}
OAUTH = {**SASL, "sasl.mechanism": "OAUTHBEARER"}
ENDPOINT = {**OAUTH, "sasl.oauthbearer.token.endpoint.url": "https://idp/token"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (SASL, "sasl.mechanism: GSSAPI (Kerberos) is not supported, and is Kafka's default"),
        ({**SASL, "sasl.mechanism": "AWS_MSK_IAM"}, "oauth_cb"),
        ({**SASL, "sasl.mechanism": "CRAM-MD5"}, "'CRAM-MD5' is not supported; use one of PLAIN"),
        (SCRAM, "sasl.username: is missing"),
        ({**SCRAM, "sasl.username": "u"}, "sasl.password: is missing"),
        ({**SCRAM, "sasl.jaas.config": f'{PLAIN_MODULE} required password="hunter2";'}, "needs ScramLogin"),
        ({**SCRAM, "sasl.jaas.config": 'ScramLoginModule required password="hunter2";'}, "has no username"),
        ({**SCRAM, "sasl.jaas.config": 'ScramLoginModule required password="hunter2"'}, "';' that ends"),
        (
            {**SCRAM, "sasl.jaas.config": "ScramLoginModule required username=u password=x tokenauth=a;"},
            "delegation tokens",
        ),
        ({**JAVA, "sasl.password": "hunter2"}, "sasl.password: sasl.jaas.config is set, too"),
        ({**SCRAM, "sasl.username": "u", "sasl.password": "hunter2", "oauth_cb": print}, "oauth_cb: only"),
        (OAUTH, "sasl.oauthbearer.token.endpoint.url: is missing, and so is oauth_cb"),
        (ENDPOINT, "client.id: is missing"),
        (ENDPOINT, "client.secret: is missing"),
        ({**ENDPOINT, "oauth_cb": print}, "tokens come from one place"),
        ({**OAUTH, "oauth_cb": "module.function"}, "oauth_cb: must be a function"),
        ({**OAUTH, "oauth_cb": print, "sasl.oauthbearer.extensions": "x"}, "not a list of KEY=VALUE"),
        ({**OAUTH, "oauth_cb": print, "sasl.oauthbearer.extensions": "auth=x"}, "auth: RFC 7628"),
        ({**ENDPOINT, "sasl.oauthbearer.token.endpoint.url": "http://idp/token"}, "must be https://"),
        ({**ENDPOINT, "sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd"}, "must be https://"),
        ({**ENDPOINT, "sasl.oauthbearer.token.endpoint.url": "https://u:hunter2@idp/"}, "without a user"),
        ({**OAUTH, "oauth_cb": print, "sasl.jaas.config": f"{OAUTH_MODULE} required x=hunter2;"}, "x: not"),
        ({"bootstrap.servers": "SSL://b:9093"}, "'SSL://b:9093', and security.protocol is PLAINTEXT"),
        ({"sasl.jaas.config": "x required password=hunter2;"}, "security.protocol=PLAINTEXT has no login"),
        ({**SASL, "sasl.jaas.confg": "hunter2"}, "unknown setting; did you mean sasl.jaas.config?"),
        ({"sasl.oauthbearer.config": "hunter2"}, "oauth_cb"),
        ({"enable.ssl.certificate.verification": "false"}, "not supported: a peer that is not known"),
        ({"sasl.login.callback.handler.class": "com.x.Y"}, "oauth_cb"),
        ({"sasl.oauthbearer.assertion.private.key.passphrase": "hunter2"}, "oauth_cb"),
        ({"security.protocol": "SSL", "ssl.keystore.key": "hunter2"}, "ssl.keystore.certificate.chain"),
    ],
)  # fmt: skip
def test_mistakes_are_named(given: Mapping[str, object], text: str) -> None:
    assert any(text in line for line in problems(given)), problems(given)


def test_all_problems_are_reported_together() -> None:
    found = problems(
        {
            **SCRAM,
            "sasl.username": "u",
            "ssl.keystore.key": "hunter2",
            "ssl.truststore.password": "hunter2",
            "ssl.curves.list": "P-256",
            "request.timeout.ms": "0",
        }
    )
    assert len(found) == 5, found


def test_a_token_endpoint_in_two_spellings() -> None:
    named = {
        **ENDPOINT,
        "sasl.oauthbearer.client.id": "app",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
    }
    jaas = {
        **ENDPOINT,
        "sasl.jaas.config": (
            f'{OAUTH_MODULE} required clientId="app" clientSecret="{QUOTED}" scope="kafka" '
            'extension_logicalCluster="lkc-1" extension_identityPoolId="pool-2";'
        ),
    }
    login = parse_named(named).security.sasl.login
    assert login == parse_named(jaas).security.sasl.login
    assert login.credentials == ClientCredentials(
        token_endpoint_url="https://idp/token",
        client_id="app",
        client_secret=Secret(SECRET),
        scope="kafka",
        is_urlencoded=False,
        ca_location=None,
    )
    assert dict(login.extensions) == {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}
    assert "hunter2" not in repr(login)
    assert problems({**jaas, "sasl.oauthbearer.scope": "other"}) == [
        "sasl.oauthbearer.scope: sasl.jaas.config has scope, too: give it once"
    ]


def test_token_functions_of_two_clients() -> None:
    class Provider:
        def token(self) -> str:
            return "t"

    provider = Provider()
    assert parse_named({**OAUTH, "oauth_cb": print}).security.token_callback is print
    callback = parse_named({**OAUTH, "sasl_oauth_token_provider": provider}).security.token_callback
    assert callback is not None
    assert callback() == "t"


def test_a_login_in_clear_is_noted() -> None:
    given = {**LIBRDKAFKA, "security.protocol": "SASL_PLAINTEXT"}
    del given["ssl.ca.location"]
    made = ProducerConfig.parse({"bootstrap.servers": "SASL_PLAINTEXT://b:9092", **given})
    assert any("sends the PLAIN login in clear" in note for note in made.notes)
    unchecked = {"bootstrap.servers": "b:1", "security.protocol": "SSL", "ssl_check_hostname": "false"}
    assert any("can pose as a broker" in note for note in ProducerConfig.parse(unchecked).notes)


def test_the_settings_of_a_dual_writers_admin_client() -> None:
    """Every dialect's names reach it: it would log in nowhere else."""
    branch: ClusterBranch[object] = ClusterBranch(
        "c", {"bootstrap.servers": "b:1", "transactional.id": "t", **KAFKA_PYTHON}
    )
    assert branch.admin_config.items() >= KAFKA_PYTHON.items()
