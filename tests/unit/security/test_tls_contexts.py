"""Contexts made of settings, by handshakes in memory, and failures in words."""

import logging
import ssl
from datetime import timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.support.certificates import format_certificate, format_key, make_key_pair, shake_hands

from tallystick.kernel.settings import BadConfig, build_config
from tallystick.security.tls.ciphers import CipherChoice, choose_ciphers
from tallystick.security.tls.contexts import build_client_context, load_server_tls
from tallystick.security.tls.failures import explain_handshake_failure, find_foreign_protocol
from tallystick.security.tls.settings import TlsSettings

VECTORS = Path(__file__).parents[2] / "vectors" / "stores"


def settings(**texts: object) -> TlsSettings:
    return build_config(TlsSettings, {name.replace("_", "."): str(text) for name, text in texts.items()})


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture(scope="module")
def other() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


def own(ca: trustme.CA, *names: str) -> dict[str, str]:
    leaf = ca.issue_cert(*names, key_type=trustme.KeyType.ECDSA)
    return {
        "ssl_keystore_key": leaf.private_key_pem.bytes().decode(),
        "ssl_keystore_certificate_chain": "".join(blob.bytes().decode() for blob in leaf.cert_chain_pems),
    }


def build_server_context(settings: TlsSettings) -> ssl.SSLContext:
    return load_server_tls(settings).context


def trust(ca: trustme.CA) -> dict[str, str]:
    return {"ssl_truststore_certificates": ca.cert_pem.bytes().decode()}


def failure(client: TlsSettings, server: TlsSettings, host: str = "localhost") -> str:
    with pytest.raises(ssl.SSLError) as caught:
        shake_hands(build_client_context(client), build_server_context(server), host)
    return explain_handshake_failure(caught.value)


def test_a_client_and_a_listener_shake_hands(authority: trustme.CA) -> None:
    client, server = shake_hands(
        build_client_context(settings(**trust(authority))),
        build_server_context(settings(**own(authority, "localhost"))),
    )
    assert client.version() == "TLSv1.3"
    assert server.getpeercert(binary_form=True) is None


@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_a_client_shows_its_certificate(authority: trustme.CA, client_auth: str) -> None:
    _, server = shake_hands(
        build_client_context(settings(**trust(authority), **own(authority, "a@example.org"))),
        build_server_context(
            settings(**own(authority, "localhost"), **trust(authority), ssl_client_auth=client_auth)
        ),
    )
    assert server.getpeercert(binary_form=True)


def test_a_client_without_certificate(authority: trustme.CA) -> None:
    client = settings(**trust(authority))
    listener = {**own(authority, "localhost"), **trust(authority)}
    _, server = shake_hands(
        build_client_context(client),
        build_server_context(settings(**listener, ssl_client_auth="requested")),
    )
    assert server.getpeercert(binary_form=True) is None
    text = failure(client, settings(**listener, ssl_client_auth="required"))
    assert "sent no certificate, and ssl.client.auth is required" in text


def test_stores_of_java_shake_hands() -> None:
    """The trust store has the certificate itself: for Java that is an anchor, of whatever kind."""
    server = settings(
        ssl_keystore_location=VECTORS / "key.jks",
        ssl_keystore_password="store-secret",
        ssl_key_password="key-secret",
    )
    client = settings(ssl_truststore_location=VECTORS / "trust.p12", ssl_truststore_password="store-secret")
    shake_hands(build_client_context(client), build_server_context(server))
    server = settings(ssl_keystore_location=VECTORS / "key_pkcs12.jks", ssl_keystore_password="store-secret")
    client = settings(ssl_truststore_location=VECTORS / "trust.jks")
    shake_hands(build_client_context(client), build_server_context(server))


def test_encrypted_pem_key() -> None:
    key, certificate = make_key_pair()
    texts = {
        "ssl_keystore_key": format_key(key, "right"),
        "ssl_keystore_certificate_chain": format_certificate(certificate),
    }
    build_server_context(settings(**texts, ssl_key_password="right"))
    with pytest.raises(BadConfig, match=r"ssl\.key\.password does not open the private key"):
        build_server_context(settings(**texts, ssl_key_password="wrong"))


def test_failures_have_names(authority: trustme.CA, other: trustme.CA) -> None:
    server = settings(**own(authority, "localhost"))
    assert "is not in ssl.truststore.location" in failure(settings(**trust(other)), server)
    assert "it names another host" in failure(settings(**trust(authority)), server, "elsewhere")
    key, certificate = make_key_pair(valid=(timedelta(days=-9), timedelta(days=-1)))
    expired = settings(
        ssl_keystore_key=format_key(key), ssl_keystore_certificate_chain=format_certificate(certificate)
    )
    client = settings(ssl_truststore_certificates=format_certificate(certificate))
    assert "it has expired" in failure(client, expired)


@pytest.mark.parametrize("algorithm", ["none", ""])
def test_a_host_name_may_go_unchecked(authority: trustme.CA, algorithm: str) -> None:
    client = settings(**trust(authority), ssl_endpoint_identification_algorithm=algorithm)
    server = settings(**own(authority, "localhost"))
    shake_hands(build_client_context(client), build_server_context(server), "elsewhere")


def test_plain_bytes_on_a_tls_port(authority: trustme.CA) -> None:
    context = build_server_context(settings(**own(authority, "localhost")))
    for sent, why in ((b"\0\0\0\x1a\0\x12\0\3", "does not speak TLS"), (b"GET / HTTP/1.1", "speaks HTTP")):
        incoming = ssl.MemoryBIO()
        incoming.write(sent * 4)
        end = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
        with pytest.raises(ssl.SSLError) as caught:
            end.do_handshake()
        assert why in explain_handshake_failure(caught.value)


def test_foreign_protocols_are_told_by_their_first_bytes() -> None:
    assert find_foreign_protocol(b"\x16\x03\x01\x02") == "TLS"
    assert find_foreign_protocol(b"GET / HTTP") == "HTTP"
    assert find_foreign_protocol(b"\0\0\0\x1a\0\x12") is None
    assert find_foreign_protocol(b"") is None


def test_weak_and_foreign_keys_are_named() -> None:
    key, certificate = make_key_pair(rsa.generate_private_key(65537, 1024))
    weak = {
        "ssl_keystore_key": format_key(key),
        "ssl_keystore_certificate_chain": format_certificate(certificate),
    }
    with pytest.raises(BadConfig, match=r"too short: OpenSSL asks for RSA of 2048 bits"):
        build_server_context(settings(**weak))
    stranger = {**weak, "ssl_keystore_certificate_chain": format_certificate(make_key_pair()[1])}
    with pytest.raises(BadConfig, match=r"not the one of the first certificate"):
        build_server_context(settings(**stranger))


def test_an_expired_certificate_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    key, certificate = make_key_pair(valid=(timedelta(days=-9), timedelta(days=-1)))
    with caplog.at_level(logging.WARNING, "tallystick.security.tls"):
        build_server_context(
            settings(
                ssl_keystore_key=format_key(key),
                ssl_keystore_certificate_chain=format_certificate(certificate),
            )
        )
    assert "the certificate expired on" in caplog.text


def test_all_problems_are_told_together(authority: trustme.CA) -> None:
    with pytest.raises(BadConfig) as caught:
        build_server_context(
            settings(
                ssl_cipher_suites="TLS_NONE",
                ssl_truststore_location="/none",
                ssl_client_auth="required",
            )
        )
    assert len(str(caught.value).splitlines()) == 3


def test_client_auth_needs_a_trust_store(authority: trustme.CA) -> None:
    with pytest.raises(BadConfig, match=r"ssl\.client\.auth=required without ssl\.truststore\.location"):
        build_server_context(settings(**own(authority, "localhost"), ssl_client_auth="required"))


# ------------------------------------------------------------------------------ ciphers


def test_names_of_java_and_of_openssl_are_taken() -> None:
    both = choose_ciphers(["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"])
    assert both == CipherChoice(("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"), True, False)
    assert choose_ciphers(["A:B"]).openssl == ("A", "B")
    assert choose_ciphers([]) == CipherChoice((), True, True)


def test_every_java_name_is_one_of_openssl() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for exchange in ("ECDHE_ECDSA", "ECDHE_RSA"):
        for cipher in ("AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256"):
            (name,) = choose_ciphers([f"TLS_{exchange}_WITH_{cipher}"]).openssl
            context.set_ciphers(name)
            assert name in {found["name"] for found in context.get_ciphers()}


def test_suites_of_tls_1_2_leave_only_that_version(authority: trustme.CA) -> None:
    listener = settings(
        **own(authority, "localhost"), ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    )
    client, _ = shake_hands(
        build_client_context(settings(**trust(authority))), build_server_context(listener)
    )
    assert client.version() == "TLSv1.2"
    assert client.cipher() == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2", 256)


def test_some_suites_of_tls_1_3_are_refused() -> None:
    with pytest.raises(BadConfig, match=r"TLS_CHACHA20_POLY1305_SHA256 is missing"):
        choose_ciphers(["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"])
    with pytest.raises(BadConfig, match=r"'TLS_RSA_WITH_NULL' is not a suite"):
        choose_ciphers(["TLS_RSA_WITH_NULL"])
