"""Settings of TLS, under Kafka's names, for one client or for one listener of a broker.

Rules that need no file are checked here; what the files hold, when a context is made of them.

Source: Kafka 4.3 SslConfigs, BrokerSecurityConfigs; the rules are DefaultSslEngineFactory's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import secret_setting, setting

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
STORE_TYPES: Final = ("JKS", "PKCS12", "PEM")
_TYPE_DOC: Final = "Accepted; the bytes of the file decide whether it is PEM, PKCS12 or JKS."


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS of one client or listener. `build_config(TlsSettings, texts)` makes one of texts by dotted name."""

    ssl_protocol: str = setting(
        "TLSv1.3",
        "Accepted; ssl.enabled.protocols decides.",
        choices=("TLS", *PROTOCOLS),
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        PROTOCOLS, "Versions of TLS that are allowed.", choices=PROTOCOLS
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        (), "Cipher suites that are allowed, by Java's or OpenSSL's names; empty: OpenSSL's own choice."
    )
    ssl_keystore_type: str = setting("JKS", _TYPE_DOC, choices=STORE_TYPES)
    ssl_keystore_location: str | None = setting(
        None, "File with the private key and its certificates, in PEM, PKCS12 or JKS.", none=""
    )
    ssl_keystore_password: Secret | None = secret_setting(
        "Password of that file; not for PEM, which has ssl.key.password alone."
    )
    ssl_key_password: Secret | None = secret_setting(
        "Password of the private key: an encrypted PEM key, or a JKS entry with its own."
    )
    ssl_keystore_key: Secret | None = secret_setting("The private key itself, in PEM (PKCS#8).")
    ssl_keystore_certificate_chain: Secret | None = secret_setting(
        "The certificates of ssl.keystore.key themselves, in PEM, its own first."
    )
    ssl_certificate_location: str | None = setting(
        None, "File with the certificates in PEM, if ssl.key.location has the key. Not Java's.", none=""
    )
    ssl_key_location: str | None = setting(
        None, "File with the private key in PEM of ssl.certificate.location. Not Java's.", none=""
    )
    ssl_truststore_type: str = setting("JKS", _TYPE_DOC, choices=STORE_TYPES)
    ssl_truststore_location: str | None = setting(
        None,
        "File with the certificates that are trusted, in PEM, PKCS12 or JKS, or a directory of PEM files. "
        "Without one a client trusts what the operating system does.",
        none="",
    )
    ssl_truststore_password: Secret | None = secret_setting(
        "Password of that file; a JKS file is not verified without it."
    )
    ssl_truststore_certificates: Secret | None = secret_setting(
        "The certificates that are trusted themselves, in PEM."
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "https",
        "`https`: a client checks that the certificate names the broker's host; `none` or empty: no check.",
        choices=("https", "none", ""),
    )
    ssl_client_auth: str = setting(
        "none",
        "Whether a listener asks its clients for certificates: `none`, `requested`, `required`.",
        choices=("none", "requested", "required"),
    )

    def problems(self) -> Iterator[str]:
        """Yield violations of rules that involve more than one setting."""
        if not self.ssl_enabled_protocols:
            yield "ssl.enabled.protocols: no version is left"
        yield from self._find_key_store_problems()
        if self.ssl_truststore_certificates and self.ssl_truststore_location:
            yield "ssl.truststore.certificates and ssl.truststore.location are both set: give one of them"
        if self.ssl_truststore_password and not self.ssl_truststore_location:
            yield "ssl.truststore.password is set without ssl.truststore.location"

    def _find_key_store_problems(self) -> Iterator[str]:
        for key, chain in (
            ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
            ("ssl.key.location", "ssl.certificate.location"),
        ):
            if self._has(key) and not self._has(chain):
                yield f"{key} is set without {chain}: a private key needs its certificates"
            if self._has(chain) and not self._has(key):
                yield f"{chain} is set without {key}: certificates need their private key"
        sources = ("ssl.keystore.location", "ssl.keystore.key", "ssl.key.location")
        key_sources = [name for name in sources if self._has(name)]
        if len(key_sources) > 1:
            yield f"{' and '.join(key_sources)} are set: a key comes from one place"
        if self.ssl_keystore_password and not self.ssl_keystore_location:
            yield "ssl.keystore.password is set without ssl.keystore.location"
        if self.ssl_key_password and not key_sources:
            yield "ssl.key.password is set without a key: ssl.keystore.location or ssl.keystore.key"

    def _has(self, name: str) -> bool:
        return bool(getattr(self, name.replace(".", "_")))


def has_key_store(settings: TlsSettings) -> bool:
    """Return whether the settings name a private key."""
    return bool(settings.ssl_keystore_location or settings.ssl_keystore_key or settings.ssl_key_location)


def has_trust_store(settings: TlsSettings) -> bool:
    """Return whether the settings name certificates that are trusted."""
    return bool(settings.ssl_truststore_location or settings.ssl_truststore_certificates)
