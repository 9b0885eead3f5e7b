"""Certificates for tests: trustme for what is regular, `cryptography` for what it does not make."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def make_key_pair(
    key: PrivateKey | None = None,
    *,
    subject: x509.Name | None = None,
    valid: tuple[timedelta, timedelta] = (timedelta(days=-1), timedelta(days=1)),
    hosts: tuple[str, ...] = ("localhost",),
) -> tuple[PrivateKey, x509.Certificate]:
    """Make a self-signed certificate and its key."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = subject or x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + valid[0])
        .not_valid_after(now + valid[1])
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def format_key(key: PrivateKey, password: str | None = None) -> str:
    encryption = (
        serialization.BestAvailableEncryption(password.encode())
        if password is not None
        else serialization.NoEncryption()
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    ).decode()


def format_certificate(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def shake_hands(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Do a handshake in memory; the error of the end that fails first is raised."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(10):
        done = [_step(end) for end in ends]
        if all(done):
            return ends
    raise asyncio.InvalidStateError("the handshake does not end")


def _step(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
