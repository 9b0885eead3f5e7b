"""Key stores and trust stores: PEM, PKCS12 and JKS, told apart by their bytes.

The name and the declared type of a file are ignored: keytool writes PKCS12 into `server.jks` since JDK 9.
What is refused, and what a store needs, follows Kafka's DefaultSslEngineFactory. PEM and JKS need the
standard library only, PKCS12 the extra `security`.
"""

import base64
import re
from pathlib import Path
from typing import Final

from tallystick import _lazy
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value
from tallystick.security.secret_files import warn_of_readers
from tallystick.security.tls import der, jks
from tallystick.security.tls.certificates import Certificate, parse_certificate
from tallystick.security.tls.der import BadDer
from tallystick.security.tls.settings import TlsSettings

STORE_BYTES_MAX: Final = 16 * 1024 * 1024
_JCEKS: Final = b"\xce\xce\xce\xce"
_PEM_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_CERTIFICATE_LABELS: Final = frozenset({"CERTIFICATE", "TRUSTED CERTIFICATE", "X509 CERTIFICATE"})


class BadKeyStore(BadConfig):
    """A key store or trust store that cannot be used, with the setting that names it."""


class KeyStore(Value):
    """A private key with its certificates.

    key        the key in PEM, encrypted as it was in the store
    password   the key's password, if it is encrypted
    chain      certificates in DER, the key's own first
    """

    key: Secret
    password: Secret | None
    chain: tuple[bytes, ...]
    source: str

    @property
    def certificate(self) -> Certificate:
        """The key's own certificate."""
        return parse_certificate(self.chain[0])


def load_key_store(settings: TlsSettings) -> KeyStore | None:
    """Read the private key that the settings name; None without one. Raises: BadKeyStore."""
    if settings.ssl_keystore_key:
        source = "ssl.keystore.key"
        chain = settings.ssl_keystore_certificate_chain or Secret("")
        return _parse_pem_key_store(
            f"{settings.ssl_keystore_key.reveal()}\n{chain.reveal()}", settings, source
        )
    if settings.ssl_key_location:
        source = f"ssl.key.location {settings.ssl_key_location}"
        warn_of_readers("ssl.key.location", settings.ssl_key_location)
        key = _read_file("ssl.key.location", settings.ssl_key_location)
        certificates = _read_file("ssl.certificate.location", settings.ssl_certificate_location or "")
        text = f"{_decode_pem(key, source)}\n{_decode_pem(certificates, source)}"
        return _parse_pem_key_store(text, settings, source)
    if settings.ssl_keystore_location is None:
        return None
    source = f"ssl.keystore.location {settings.ssl_keystore_location}"
    warn_of_readers("ssl.keystore.location", settings.ssl_keystore_location)
    data = _read_file("ssl.keystore.location", settings.ssl_keystore_location)
    match find_store_type(data):
        case "PEM":
            if settings.ssl_keystore_password is not None:
                raise BadKeyStore(
                    f"{source} is PEM, and PEM has no password of the store: "
                    "ssl.key.password is the one of an encrypted key"
                )
            return _parse_pem_key_store(_decode_pem(data, source), settings, source)
        case "PKCS12":
            return _parse_pkcs12_key_store(data, settings, source)
        case "JKS":
            return _parse_jks_key_store(data, settings, source)
        case other:
            raise BadKeyStore(f"{source}: {other}")


def load_trust_store(settings: TlsSettings) -> tuple[bytes, ...] | None:
    """Read the trusted certificates in DER; None if the settings name none. Raises: BadKeyStore."""
    if settings.ssl_truststore_certificates:
        source = "ssl.truststore.certificates"
        certificates = _find_certificates(settings.ssl_truststore_certificates.reveal(), source)
    elif settings.ssl_truststore_location is None:
        return None
    else:
        source = f"ssl.truststore.location {settings.ssl_truststore_location}"
        if Path(settings.ssl_truststore_location).is_dir():
            certificates = _read_directory(settings.ssl_truststore_location, source)
        else:
            data = _read_file("ssl.truststore.location", settings.ssl_truststore_location)
            certificates = _parse_trust_store(data, settings.ssl_truststore_password, source)
    if not certificates:
        raise BadKeyStore(f"{source} has no trusted certificate")
    for certificate in certificates:
        _check_certificate(certificate, source)
    return tuple(dict.fromkeys(certificates))


def find_store_type(data: bytes) -> str:
    """Return PEM, PKCS12 or JKS, or a sentence that says why the bytes are none of them."""
    if data.startswith(jks.MAGIC):
        return "JKS"
    if data.startswith(_JCEKS):
        return "a JCEKS store is not supported: keytool -importkeystore -deststoretype PKCS12 converts it"
    if b"-----BEGIN " in data:
        return "PEM"
    try:
        inner = der.read_element(der.read_tagged(data, der.SEQUENCE).content)
    except BadDer:
        return "neither PEM nor PKCS12 nor JKS" if data else "the file is empty"
    if inner.tag == der.INTEGER and inner.content == b"\x03":
        return "PKCS12"
    if inner.tag == der.SEQUENCE:
        return "one certificate in DER, not PEM, PKCS12 or JKS: openssl x509 -inform der converts it"
    return "neither PEM nor PKCS12 nor JKS"


# --------------------------------------------------------------------------------- PEM


def _parse_pem_key_store(text: str, settings: TlsSettings, source: str) -> KeyStore:
    blocks = _PEM_BLOCK.findall(text)
    keys = [(label, body) for label, body in blocks if label.endswith("PRIVATE KEY")]
    chain = _find_certificates(text, source)
    if len(keys) != 1:
        why = f"has {len(keys)} private keys: there must be one" if keys else "has no private key"
        raise BadKeyStore(f"{source} {why}")
    if not chain:
        raise BadKeyStore(f"{source} has a private key without its certificates")
    label, body = keys[0]
    is_encrypted = label.startswith("ENCRYPTED") or "ENCRYPTED" in body
    if is_encrypted and settings.ssl_key_password is None:
        raise BadKeyStore(f"{source} has an encrypted private key: ssl.key.password is missing")
    for certificate in chain:
        _check_certificate(certificate, source)
    # An old OpenSSL key has header lines, which must stay lines; any other body is base64 alone.
    key = _format_pem(label, _decode_base64(body, source)) if ":" not in body else _keep_pem(label, body)
    return KeyStore(Secret(key), settings.ssl_key_password if is_encrypted else None, tuple(chain), source)


def _find_certificates(text: str, source: str) -> list[bytes]:
    return [
        _decode_base64(body, source)
        for label, body in _PEM_BLOCK.findall(text)
        if label in _CERTIFICATE_LABELS
    ]


def _decode_base64(body: str, source: str) -> bytes:
    # A value in a properties file has its line breaks as `\n`, as spaces, or not at all.
    try:
        return base64.b64decode(re.sub(r"\s|\\[rn]", "", body), validate=True)
    except ValueError as exc:  # binascii.Error is one, and other letters than ASCII raise another
        raise BadKeyStore(f"{source}: a PEM block is not base64: {exc}") from exc


def _decode_pem(data: bytes, source: str) -> str:
    if b"-----BEGIN " not in data:
        raise BadKeyStore(f"{source} is not PEM")
    return data.decode("utf-8", "replace")


def _format_pem(label: str, data: bytes) -> str:
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


def _keep_pem(label: str, body: str) -> str:
    return f"-----BEGIN {label}-----\n{body.strip()}\n-----END {label}-----\n"


def format_chain(chain: tuple[bytes, ...]) -> str:
    """Return certificates in PEM."""
    return "".join(_format_pem("CERTIFICATE", certificate) for certificate in chain)


# ------------------------------------------------------------------------------ PKCS12


def _parse_pkcs12_key_store(data: bytes, settings: TlsSettings, source: str) -> KeyStore:
    password = settings.ssl_keystore_password
    if password is None:
        raise BadKeyStore(f"{source} is PKCS12: ssl.keystore.password is missing")
    store = _open_pkcs12(data, password, source)
    if store.key is None:
        raise BadKeyStore(f"{source} has no private key")
    if store.cert is None:
        raise BadKeyStore(f"{source} has a private key without its certificates")
    certificates = [store.cert.certificate, *(other.certificate for other in store.additional_certs)]
    serialization = _lazy.load("cryptography.hazmat.primitives.serialization")
    key: bytes = store.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = tuple(certificate.public_bytes(serialization.Encoding.DER) for certificate in certificates)
    return KeyStore(Secret(key.decode()), None, chain, source)


def _open_pkcs12(data: bytes, password: Secret | None, source: str):  # type: ignore[no-untyped-def]
    try:
        pkcs12 = _lazy.load("cryptography.hazmat.primitives.serialization.pkcs12")
    except _lazy.MissingLibrary as exc:
        raise BadKeyStore(f"{source} is PKCS12, and {exc}; PEM needs no library") from exc
    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.reveal().encode())
    except ValueError as exc:
        if password is None:
            raise BadKeyStore(f"{source} is PKCS12 and cannot be read without its password") from exc
        raise BadKeyStore(f"{source}: the password does not open the PKCS12 store, or it is damaged") from exc


# --------------------------------------------------------------------------------- JKS


def _parse_jks_key_store(data: bytes, settings: TlsSettings, source: str) -> KeyStore:
    password = settings.ssl_keystore_password
    if password is None:
        raise BadKeyStore(f"{source} is JKS: ssl.keystore.password is missing")
    try:
        keys = jks.parse_jks(data, password.reveal()).keys
        if len(keys) != 1:
            names = ", ".join(repr(key.alias) for key in keys)
            why = (
                f"has {len(keys)} private keys ({names}): there must be one" if keys else "has no private key"
            )
            raise BadKeyStore(f"{source} {why}")
        key = jks.reveal_key(keys[0], (settings.ssl_key_password or password).reveal())
    except jks.BadJks as exc:
        raise BadKeyStore(f"{source}: {exc}") from exc
    if not keys[0].chain:
        raise BadKeyStore(f"{source} has a private key without its certificates")
    for certificate in keys[0].chain:
        _check_certificate(certificate, source)
    return KeyStore(Secret(_format_pem("PRIVATE KEY", key)), None, keys[0].chain, source)


# ------------------------------------------------------------------------- trust stores


def _parse_trust_store(data: bytes, password: Secret | None, source: str) -> list[bytes]:
    match find_store_type(data):
        case "PEM":
            if password is not None:
                raise BadKeyStore(f"{source} is PEM, which has no password: remove ssl.truststore.password")
            return _find_certificates(_decode_pem(data, source), source)
        case "PKCS12":
            store = _open_pkcs12(data, password, source)
            encoding = _lazy.load("cryptography.hazmat.primitives.serialization").Encoding.DER
            return [other.certificate.public_bytes(encoding) for other in store.additional_certs]
        case "JKS":
            try:
                return list(jks.parse_jks(data, None if password is None else password.reveal()).trusted)
            except jks.BadJks as exc:
                raise BadKeyStore(f"{source}: {exc}") from exc
        case other:
            raise BadKeyStore(f"{source}: {other}")


def _read_directory(path: str, source: str) -> list[bytes]:
    """Read every PEM file of a directory, as librdkafka's ssl.ca.location may be one."""
    certificates: list[bytes] = []
    for file in sorted(Path(path).iterdir()):
        if file.is_file() and b"-----BEGIN " in (data := _read_file("ssl.truststore.location", str(file))):
            certificates += _find_certificates(_decode_pem(data, source), f"{source}, {file.name}")
    return certificates


def _read_file(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except OSError as exc:
        raise BadKeyStore(f"{name} {path}: {exc.strerror or exc}") from exc
    if len(data) > STORE_BYTES_MAX:
        raise BadKeyStore(f"{name} {path}: larger than {STORE_BYTES_MAX} bytes, so not a key store")
    return data


def _check_certificate(certificate: bytes, source: str) -> None:
    try:
        parse_certificate(certificate)
    except BadDer as exc:
        raise BadKeyStore(f"{source}: a certificate cannot be read: {exc}") from exc
