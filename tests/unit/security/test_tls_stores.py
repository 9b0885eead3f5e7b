"""Key stores and trust stores: every format, and every bad input as one clear error."""

import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from hypothesis import given
from hypothesis import strategies as st
from tests.support.certificates import format_certificate, format_key, make_key_pair

from tallystick import _lazy
from tallystick.kernel.settings import BadConfig, build_config
from tallystick.security.tls import stores
from tallystick.security.tls.jks import BadJks, parse_jks, reveal_key
from tallystick.security.tls.settings import TlsSettings
from tallystick.security.tls.stores import BadKeyStore, find_store_type, load_key_store, load_trust_store

VECTORS = Path(__file__).parents[2] / "vectors" / "stores"
KEY_DER = (VECTORS / "key.der").read_bytes()
PKCS12_DER = (VECTORS / "key_pkcs12.der").read_bytes()
SECRET = "store-secret"


def settings(**texts: object) -> TlsSettings:
    return build_config(TlsSettings, {name.replace("_", "."): str(text) for name, text in texts.items()})


@pytest.fixture(scope="module")
def pem() -> tuple[str, str]:
    key, certificate = make_key_pair()
    return format_key(key), format_certificate(certificate)


def test_jks_key_has_its_own_password() -> None:
    store = load_key_store(
        settings(
            ssl_keystore_location=VECTORS / "key.jks",
            ssl_keystore_password=SECRET,
            ssl_key_password="key-secret",
        )
    )
    assert store is not None
    assert store.chain == (KEY_DER,)
    private = serialization.load_pem_private_key(store.key.reveal().encode(), None)
    public = x509.load_der_x509_certificate(KEY_DER).public_key()
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public


def test_pkcs12_is_read_whatever_the_name_and_the_type() -> None:
    given_type = settings(
        ssl_keystore_location=VECTORS / "key_pkcs12.jks",
        ssl_keystore_password=SECRET,
        ssl_keystore_type="JKS",
    )
    store = load_key_store(given_type)
    assert store is not None
    assert store.chain == (PKCS12_DER,)


@pytest.mark.parametrize("password", [None, SECRET])
def test_jks_trust_store_needs_no_password(password: str | None) -> None:
    found = load_trust_store(
        settings(
            ssl_truststore_location=VECTORS / "trust.jks",
            **({} if password is None else {"ssl_truststore_password": password}),
        )
    )
    assert found is not None
    assert set(found) == {KEY_DER, PKCS12_DER}


def test_pkcs12_trust_store() -> None:
    path = VECTORS / "trust.p12"
    assert load_trust_store(settings(ssl_truststore_location=path, ssl_truststore_password=SECRET)) == (
        KEY_DER,
    )


def test_pem_store_in_one_file_in_two_and_inline(tmp_path: Path, pem: tuple[str, str]) -> None:
    key, chain = pem
    (tmp_path / "both.pem").write_text(f"a comment\n{key}{chain}")
    (tmp_path / "tls.key").write_text(key)
    (tmp_path / "tls.crt").write_text(chain)
    # A properties file holds a value in one line: its breaks are gone, or spaces, or written as \n.
    flat_key, flat_chain = key.replace("\n", "\\n"), chain.replace("\n", " ")
    loaded = [
        load_key_store(settings(ssl_keystore_location=tmp_path / "both.pem")),
        load_key_store(
            settings(ssl_key_location=tmp_path / "tls.key", ssl_certificate_location=tmp_path / "tls.crt")
        ),
        load_key_store(settings(ssl_keystore_key=flat_key, ssl_keystore_certificate_chain=flat_chain)),
    ]
    assert {(store.key.reveal(), store.chain) for store in loaded if store is not None} == {
        (key, stores.load_trust_store(settings(ssl_truststore_certificates=chain)))
    }


def test_trust_store_may_be_a_directory(tmp_path: Path, pem: tuple[str, str]) -> None:
    (tmp_path / "1.crt").write_text(pem[1])
    (tmp_path / "same.pem").write_text(pem[1])
    (tmp_path / "README").write_text("not PEM")
    found = load_trust_store(settings(ssl_truststore_location=tmp_path))
    assert found is not None
    assert len(found) == 1


def test_without_settings_there_is_no_store() -> None:
    assert load_key_store(settings()) is None
    assert load_trust_store(settings()) is None


# ------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"ssl_keystore_key": "k"}, "ssl.keystore.key is set without ssl.keystore.certificate.chain"),
        (
            {"ssl_keystore_certificate_chain": "c"},
            "ssl.keystore.certificate.chain is set without ssl.keystore.key",
        ),
        ({"ssl_key_location": "k"}, "ssl.key.location is set without ssl.certificate.location"),
        (
            {
                "ssl_keystore_key": "k",
                "ssl_keystore_certificate_chain": "c",
                "ssl_keystore_location": "/f",
            },
            "ssl.keystore.location and ssl.keystore.key are set",
        ),
        ({"ssl_keystore_password": "p"}, "ssl.keystore.password is set without ssl.keystore.location"),
        ({"ssl_key_password": "p"}, "ssl.key.password is set without a key"),
        ({"ssl_truststore_password": "p"}, "ssl.truststore.password is set without"),
        ({"ssl_truststore_certificates": "c", "ssl_truststore_location": "/f"}, "are both set"),
        ({"ssl_client_auth": "want"}, "'want' is not one of none, requested, required"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "'TLSv1.1' is not any of TLSv1.2, TLSv1.3"),
        ({"ssl_keystore_locaton": "/f"}, "did you mean ssl.keystore.location?"),
    ],
)
def test_settings_that_contradict_each_other(texts: dict[str, object], problem: str) -> None:
    with pytest.raises(BadConfig, match=r"(?s).*") as caught:
        settings(**texts)
    assert problem in str(caught.value)


def test_all_problems_of_settings_are_told_together() -> None:
    with pytest.raises(BadConfig) as caught:
        settings(ssl_keystore_key="k", ssl_truststore_password="p")
    assert len(str(caught.value).splitlines()) == 2


def test_bad_key_stores(tmp_path: Path, pem: tuple[str, str]) -> None:
    key, chain = pem
    secret_key = format_key(make_key_pair()[0], "right")

    def refusal(content: str | bytes, **texts: str) -> str:
        path = tmp_path / "store"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(BadKeyStore) as caught:
            load_key_store(settings(ssl_keystore_location=path, **texts))
        assert str(path) in str(caught.value)
        return str(caught.value)

    jks, pkcs12_store = (VECTORS / "key.jks").read_bytes(), (VECTORS / "key_pkcs12.jks").read_bytes()
    assert "has a private key without its certificates" in refusal(key)
    assert "has no private key" in refusal(chain)
    assert "has 2 private keys" in refusal(key + key + chain)
    assert "ssl.key.password is missing" in refusal(secret_key + chain)
    assert "PEM has no password of the store" in refusal(key + chain, ssl_keystore_password="p")
    assert "not base64" in refusal(key.replace("\n", "\n*", 2) + chain)
    assert "not base64" in refusal(key.replace("\n", "\né", 2) + chain)
    assert "a certificate cannot be read" in refusal(
        key + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    )
    assert "is JKS: ssl.keystore.password is missing" in refusal(jks)
    assert "does not open the JKS store" in refusal(jks, ssl_keystore_password="wrong")
    assert "does not open private key 'broker'" in refusal(jks, ssl_keystore_password=SECRET)
    assert "is PKCS12: ssl.keystore.password is missing" in refusal(pkcs12_store)
    assert "does not open the PKCS12 store" in refusal(pkcs12_store, ssl_keystore_password="wrong")
    trust = (VECTORS / "trust.jks").read_bytes()
    assert "has no private key" in refusal(trust, ssl_keystore_password=SECRET)
    assert "the file is empty" in refusal(b"")
    assert "neither PEM nor PKCS12 nor JKS" in refusal(b"PK\x03\x04 a zip file")
    assert "one certificate in DER" in refusal(KEY_DER)
    assert "JCEKS" in refusal(b"\xce\xce\xce\xce\0\0\0\2")


def test_bad_trust_stores(tmp_path: Path, pem: tuple[str, str]) -> None:
    with pytest.raises(BadKeyStore, match=r"/none: No such file or directory"):
        load_trust_store(settings(ssl_truststore_location="/none"))
    path = tmp_path / "trust"
    path.write_text(pem[0])
    with pytest.raises(BadKeyStore, match=r"has no trusted certificate"):
        load_trust_store(settings(ssl_truststore_location=path))
    path.write_text(pem[1])
    with pytest.raises(BadKeyStore, match=r"remove ssl\.truststore\.password"):
        load_trust_store(settings(ssl_truststore_location=path, ssl_truststore_password="p"))
    shutil.copy(VECTORS / "trust.p12", path)
    with pytest.raises(BadKeyStore, match=r"cannot be read without its password"):
        load_trust_store(settings(ssl_truststore_location=path))
    path.write_bytes((VECTORS / "trust.jks").read_bytes()[:-1])
    with pytest.raises(BadKeyStore, match=r"expected a 20-byte digest after the entries, found 19 bytes"):
        load_trust_store(settings(ssl_truststore_location=path))


def test_pkcs12_names_the_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _lazy.load

    def no_cryptography(name: str) -> object:
        if name.startswith("cryptography"):
            raise _lazy.MissingLibrary("cryptography", "security")
        return real(name)

    monkeypatch.setattr(_lazy, "load", no_cryptography)
    with pytest.raises(BadKeyStore, match=r"pip install '\S*\[security\]'"):
        load_trust_store(
            settings(ssl_truststore_location=VECTORS / "trust.p12", ssl_truststore_password=SECRET)
        )


def test_secrets_are_not_shown(pem: tuple[str, str]) -> None:
    shown = settings(
        ssl_keystore_location="/f",
        ssl_keystore_password="geheim",
        ssl_key_password="geheim",
        ssl_truststore_certificates="geheim",
    )
    assert "geheim" not in repr(shown)
    assert "ssl_keystore_location='/f'" in repr(shown)
    assert "ssl_keystore_password=Secret([hidden])" in repr(shown)
    store = load_key_store(settings(ssl_keystore_key=pem[0], ssl_keystore_certificate_chain=pem[1]))
    assert "PRIVATE" not in repr(store)


# ------------------------------------------------------------------------ hostile bytes


@given(data=st.data())
def test_a_damaged_jks_store_is_refused_or_read(data: st.DataObject) -> None:
    whole = bytearray((VECTORS / "key.jks").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(4, len(whole)))])
    try:
        for key in parse_jks(cut, None).keys:
            reveal_key(key, "key-secret")
    except BadJks:
        pass


@pytest.mark.parametrize(
    "body",
    [
        "00000003 00000000",  # version
        "00000002 7fffffff",  # entries that are not there
        "00000002 00000001 00000001 0000 0000000000000000 7fffffff",  # a key of 2 GiB
        "00000002 00000001 00000001 0000 0000000000000000 00000000 7fffffff",  # a chain of 2^31
        "00000002 00000001 00000009 0000 0000000000000000",  # a tag that is unknown
    ],
)
def test_jks_promises_are_compared_with_the_bytes(body: str) -> None:
    with pytest.raises(BadJks):
        parse_jks(bytes.fromhex("feedfeed" + body.replace(" ", "")), None)


def test_types_are_told_by_bytes() -> None:
    key, certificate = make_key_pair()
    made = pkcs12.serialize_key_and_certificates(
        b"n", key, certificate, None, serialization.BestAvailableEncryption(b"p")
    )
    assert find_store_type(made) == "PKCS12"
    assert find_store_type((VECTORS / "key.jks").read_bytes()) == "JKS"
    assert find_store_type(b"\xef\xbb\xbf  -----BEGIN CERTIFICATE-----") == "PEM"
