"""Distinguished names of certificates as Java prints them, which is how ACLs written for Kafka spell them.

Kafka's principal of a certificate is `X500Principal.getName()`: RFC 2253 with the most specific part first,
nine keywords, and every other attribute by its number with its value in hexadecimal. Where the JDK departs
from the RFC (a `#` is escaped everywhere, a text of two bytes per character is read as UTF-8) so does this: a
name that differs by one character has other rights.

Source: RFC 2253, 2.4; the JDK's sun.security.x509.AVA.
"""

from typing import Final

from tallystick.security.tls import der
from tallystick.security.tls.certificates import parse_certificate
from tallystick.security.tls.der import BadDer

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_GENERAL_STRING: Final = 0x1B
_TEXT_TAGS: Final = frozenset(
    {
        der.UTF8_STRING,
        der.PRINTABLE_STRING,
        der.T61_STRING,
        der.IA5_STRING,
        _GENERAL_STRING,
        der.BMP_STRING,
    }
)
_ESCAPED: Final = {**{ord(c): f"\\{c}" for c in ',=+<>#;"\\'}, 0: "\\00"}
_WHITE: Final = " \r"


def read_subject_name(certificate: bytes) -> str:
    """Return the subject of a certificate in DER, as Java's getName() has it. Raises: BadDer."""
    return format_name(parse_certificate(certificate).subject)


def format_name(name: bytes) -> str:
    """Return a Name in DER as `CN=broker,O=Tally,C=DE`. Raises: BadDer."""
    relative_names = list(der.iter_elements(der.read_only(name, der.SEQUENCE).content))
    return ",".join(_format_relative_name(element) for element in reversed(relative_names))


def _format_relative_name(element: der.Element) -> str:
    if element.tag != der.SET:
        raise BadDer("a part of a name is not a set")
    return "+".join(_format_attribute(attribute) for attribute in der.iter_elements(element.content))


def _format_attribute(attribute: der.Element) -> str:
    parts = list(der.iter_elements(attribute.content))
    if attribute.tag != der.SEQUENCE or len(parts) != 2 or parts[0].tag != der.OBJECT_IDENTIFIER:
        raise BadDer("an attribute of a name is not a type and a value")
    oid, value = der.format_oid(parts[0].content), parts[1]
    keyword = _KEYWORDS.get(oid)
    if keyword is None or value.tag not in _TEXT_TAGS:
        return f"{keyword or oid}=#{value.encoded.hex()}"
    return f"{keyword}={_escape(value.content.decode('utf-8', 'replace'))}"


def _escape(text: str) -> str:
    lead = len(text) - len(text.lstrip(_WHITE))
    trail = len(text.rstrip(_WHITE))
    return "".join(
        f"\\{char}" if not lead <= at < trail else _ESCAPED.get(ord(char), char)
        for at, char in enumerate(text)
    )
