"""Failed handshakes in words: what is wrong, and which setting or file to look at.

OpenSSL's reasons are its own; Kafka's users know Java's. Each sentence names both ends' setting.
"""

import ssl
from typing import Final

# Reasons of OpenSSL at its security level, where Java would only warn or say nothing.
WEAK_CERTIFICATES: Final = {
    "EE_KEY_TOO_SMALL": "the certificate's key is too short: OpenSSL asks for RSA of 2048 bits or more",
    "CA_KEY_TOO_SMALL": "the key of its authority is too short: OpenSSL asks for RSA of 2048 bits or more",
    "CA_MD_TOO_WEAK": "the certificate is signed with SHA-1 or MD5, which OpenSSL refuses: use SHA-256",
}

# X509_V_ERR_*, as SSLCertVerificationError.verify_code has them.
_VERIFY_CODES: Final = {
    9: "it is not valid yet: compare the clocks",
    10: "it has expired",
    18: "it is self-signed and not in ssl.truststore.location",
    19: "its authority is not in ssl.truststore.location",
    20: "its authority is not in ssl.truststore.location, or an intermediate certificate was not sent",
    21: "its authority is not in ssl.truststore.location, or an intermediate certificate was not sent",
    26: "it is not made for this purpose (extended key usage)",
    62: "it names another host: connect by a name that it has, or issue one with this name",
    64: "it names another address: connect by a name that it has, or issue one with this address",
    66: WEAK_CERTIFICATES["EE_KEY_TOO_SMALL"],
    67: WEAK_CERTIFICATES["CA_KEY_TOO_SMALL"],
    68: WEAK_CERTIFICATES["CA_MD_TOO_WEAK"],
    85: "it has no Authority Key Identifier, which VERIFY_X509_STRICT (Python 3.13's default) asks for",
    92: "its authority has no Key Usage, which VERIFY_X509_STRICT (Python 3.13's default) asks for",
}

_REASONS: Final = {
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS on this port",
    "HTTP_REQUEST": "the peer speaks HTTP without TLS on this port",
    "HTTPS_PROXY_REQUEST": "the peer takes this port for a proxy",
    "PACKET_LENGTH_TOO_LONG": "the peer does not speak TLS on this port",
    "BAD_PACKET_LENGTH": "the peer does not speak TLS on this port",
    "RECORD_LAYER_FAILURE": "the peer does not speak TLS on this port",
    "UNSUPPORTED_PROTOCOL": "the peer speaks only versions of TLS that ssl.enabled.protocols leaves out",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer accepts none of the versions in ssl.enabled.protocols",
    "NO_SHARED_CIPHER": "no cipher suite is allowed at both ends: ssl.cipher.suites",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer accepts none of the cipher suites, or misses a certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer sent no certificate, and ssl.client.auth is required",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer asks for a certificate: ssl.keystore.location",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the authority of our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refuses our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer says that our certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer refuses our certificate",
    "TLSV1_ALERT_DECRYPT_ERROR": "the peer cannot verify our certificate",
    "UNEXPECTED_EOF_WHILE_READING": "the peer closed the connection in the handshake",
    **WEAK_CERTIFICATES,
}


def explain_handshake_failure(exc: BaseException) -> str:
    """Return why a handshake failed, as a clause for a log line or an exception."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        why = _VERIFY_CODES.get(exc.verify_code)
        return f"the peer's certificate is refused: {why or exc.verify_message}"
    if isinstance(exc, ssl.SSLError):
        why = _REASONS.get(exc.reason or "")
        return f"{why} ({exc.reason})" if why else f"{exc.reason or exc}"
    if isinstance(exc, TimeoutError):
        return "it did not end in time"
    if isinstance(exc, ConnectionError):
        return "the peer closed the connection in the handshake"
    return str(exc) or type(exc).__name__


def find_foreign_protocol(head: bytes) -> str | None:
    """Return what the first bytes of a connection speak, if that is not Kafka's protocol without TLS.

    A TLS record starts with type 22 and version 3.x: as the size of a request, over 369 million.
    """
    if len(head) >= 2 and head[0] == 0x16 and head[1] == 0x03:
        return "TLS"
    if head[:4] in (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"CONN", b"DELE", b"PRI "):
        return "HTTP"
    return None
