"""SSL contexts made of settings, for clients and for listeners.

A context is never changed once it is made, a reload makes a new one: loading another certificate into a live
one keeps the old key as well if the types differ, and a context set by SNI keeps the old verify_mode.
"""

import logging
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final

from tallystick.kernel.settings import BadConfig, collect_problems
from tallystick.kernel.value import Value
from tallystick.security.tls.certificates import Certificate
from tallystick.security.tls.ciphers import choose_ciphers
from tallystick.security.tls.failures import WEAK_CERTIFICATES
from tallystick.security.tls.settings import TlsSettings
from tallystick.security.tls.stores import (
    BadKeyStore,
    KeyStore,
    format_chain,
    load_key_store,
    load_trust_store,
)

_log = logging.getLogger("tallystick.security.tls")

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def build_client_context(settings: TlsSettings, now: datetime | None = None) -> ssl.SSLContext:
    """Make the context of a client. Without a trust store it trusts what the operating system does.

    Raises: BadConfig with every problem of the settings and of the files that they name.
    """
    # Not ssl.create_default_context: since Python 3.13 that sets VERIFY_X509_STRICT, which refuses a private
    # CA without Authority Key Identifier. Java and librdkafka accept such a CA.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.ssl_endpoint_identification_algorithm == "https"
    problems: list[str] = []
    with collect_problems(problems):
        _apply_versions(context, settings)
    with collect_problems(problems):
        if not _load_trusted(context, settings):
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    with collect_problems(problems):
        _load_own_key(context, load_key_store(settings), now)
    if problems:
        raise BadConfig("\n".join(problems))
    return context


class ServerTls(Value):
    """The context of a listener, and the certificate that it shows."""

    context: ssl.SSLContext
    certificate: Certificate


def load_server_tls(settings: TlsSettings, now: datetime | None = None) -> ServerTls:
    """Make the context of a listener, once for every time that its files are read.

    Raises: BadConfig with every problem of the settings and of the files that they name.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # A resumed session skips the look at the certificates: after a reload it would outlive what it was made
    # with. Connections of Kafka clients live long, so that resumption would save little.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.verify_mode = _CLIENT_AUTH[settings.ssl_client_auth]
    problems: list[str] = []
    with collect_problems(problems):
        _apply_versions(context, settings)
    with collect_problems(problems):
        if not _load_trusted(context, settings) and settings.ssl_client_auth != "none":
            # Java would trust every public authority here: anyone with a certificate for a web site comes in.
            raise BadConfig(
                f"ssl.client.auth={settings.ssl_client_auth} without ssl.truststore.location: it says which "
                "clients' certificates are trusted"
            )
    store = None
    with collect_problems(problems):
        store = load_key_store(settings)
        if store is None:
            raise BadConfig("TLS needs a private key: ssl.keystore.location or ssl.keystore.key")
        _load_own_key(context, store, now)
    if problems or store is None:
        raise BadConfig("\n".join(problems))
    return ServerTls(context, store.certificate)


def _apply_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    choice = choose_ciphers(settings.ssl_cipher_suites)
    versions = [
        version
        for version, is_left in (("TLSv1.2", choice.allows_tls_1_2), ("TLSv1.3", choice.allows_tls_1_3))
        if is_left and version in settings.ssl_enabled_protocols
    ]
    if not versions:
        raise BadConfig("ssl.cipher.suites has no suite of a version in ssl.enabled.protocols")
    context.minimum_version, context.maximum_version = _VERSIONS[versions[0]], _VERSIONS[versions[-1]]
    if choice.openssl:
        try:
            context.set_ciphers(":".join(choice.openssl))
        except ssl.SSLError as exc:
            raise BadConfig(f"ssl.cipher.suites: OpenSSL has none of {', '.join(choice.openssl)}") from exc


def _load_trusted(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    certificates = load_trust_store(settings)
    if certificates is None:
        return False
    for certificate in certificates:
        try:
            context.load_verify_locations(cadata=certificate)
        except ssl.SSLError as exc:
            raise BadKeyStore(f"the trust store has a certificate that OpenSSL cannot read: {exc}") from exc
    # Java takes every certificate of a trust store for an anchor, an intermediate one or a server's own too.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return True


def _load_own_key(context: ssl.SSLContext, store: KeyStore | None, now: datetime | None) -> None:
    if store is None:
        return

    def give_password() -> str:
        # Always given: OpenSSL asks on the terminal otherwise.
        return store.password.reveal() if store.password is not None else ""

    with _as_file(store.key.reveal() + format_chain(store.chain)) as path:
        try:
            context.load_cert_chain(path, password=give_password)
        except ssl.SSLError as exc:
            raise BadKeyStore(f"{store.source}: {_explain_own_key(exc, store)}") from exc
    _warn_of_validity(store, now or datetime.now(UTC))


def _explain_own_key(exc: ssl.SSLError, store: KeyStore) -> str:
    reason = exc.reason or ""
    if reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
        return "the private key is not the one of the first certificate"
    if reason in WEAK_CERTIFICATES:
        return WEAK_CERTIFICATES[reason]
    if store.password is not None:
        return "ssl.key.password does not open the private key"
    return f"the private key or its certificates cannot be read: {exc}"


def _warn_of_validity(store: KeyStore, now: datetime) -> None:
    certificate = store.certificate
    if certificate.not_after < now:
        _log.warning(
            "%s: the certificate expired on %s: peers will refuse it", store.source, certificate.not_after
        )
    elif certificate.not_before > now:
        _log.warning(
            "%s: the certificate is valid from %s only: peers will refuse it",
            store.source,
            certificate.not_before,
        )


@contextmanager
def _as_file(content: str) -> Iterator[str]:
    """Give a path to the content: OpenSSL takes a key from a file only, and none is written to a disk."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("tallystick-key")
        with open(number, "w", encoding="ascii") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{number}"
        return
    number, path = tempfile.mkstemp()  # readable by the owner alone
    try:
        with open(number, "w", encoding="ascii") as file:
            file.write(content)
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)
