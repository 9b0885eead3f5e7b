"""Cipher suites of TLS 1.2 by Java's names, which OpenSSL spells its own way; those of TLS 1.3 are equal.

Source: RFC 5289, RFC 7905, and `openssl ciphers -stdname`.
"""

from collections.abc import Sequence
from typing import Final

from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value

TLS_1_3_SUITES: Final = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
_TLS_1_2_SUITES: Final = {
    f"TLS_{exchange}_WITH_{java}": f"{prefix}{openssl}"
    for exchange, prefix in {
        "ECDHE_ECDSA": "ECDHE-ECDSA-",
        "ECDHE_RSA": "ECDHE-RSA-",
        "DHE_RSA": "DHE-RSA-",
        "RSA": "",
    }.items()
    for java, openssl in {
        "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
        "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
        "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
        "AES_128_CBC_SHA256": "AES128-SHA256",
        "AES_256_CBC_SHA384": "AES256-SHA384",
        "AES_256_CBC_SHA256": "AES256-SHA256",
        "AES_128_CBC_SHA": "AES128-SHA",
        "AES_256_CBC_SHA": "AES256-SHA",
    }.items()
}


class CipherChoice(Value):
    """Parsed ssl.cipher.suites: TLS 1.2 suites by OpenSSL's names, and the remaining versions."""

    openssl: tuple[str, ...]
    allows_tls_1_2: bool
    allows_tls_1_3: bool


def choose_ciphers(names: Sequence[str]) -> CipherChoice:
    """Translate names of Java or of OpenSSL (these may be joined by colons).

    Raises: BadConfig for an unknown name, and for some suites of TLS 1.3 only, since the standard library has
        no call that leaves the others out.
    """
    singles = [name for joined in names for name in joined.split(":") if name]
    if not singles:
        return CipherChoice((), True, True)
    modern = {name for name in singles if name in TLS_1_3_SUITES}
    openssl = []
    for name in singles:
        if name in modern:
            continue
        if name.startswith("TLS_") and name not in _TLS_1_2_SUITES:
            raise BadConfig(f"ssl.cipher.suites: {name!r} is not a suite of TLS 1.2 or 1.3 that OpenSSL has")
        openssl.append(_TLS_1_2_SUITES.get(name, name))
    if modern and modern != TLS_1_3_SUITES:
        missing = ", ".join(sorted(TLS_1_3_SUITES - modern))
        raise BadConfig(
            f"ssl.cipher.suites: suites of TLS 1.3 are allowed all or none, {missing} is missing; "
            "without any of them, and with some of TLS 1.2, only TLS 1.2 is spoken"
        )
    return CipherChoice(tuple(openssl), bool(openssl), bool(modern))
