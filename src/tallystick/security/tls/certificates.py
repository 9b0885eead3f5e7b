"""The fields of an X.509 certificate that matter here: subject, period of validity, alternative names.

Source: RFC 5280, 4.1.
"""

import re
from datetime import UTC, datetime
from typing import Final

from tallystick.kernel.value import Value
from tallystick.security.tls import der
from tallystick.security.tls.der import BadDer, Element

_SUBJECT_ALTERNATIVE_NAME: Final = "2.5.29.17"
_TIME: Final = re.compile(rb"(\d{4}|\d{2})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z")


class Certificate(Value):
    """Fields of a certificate; `subject` is the DER of a Name, alternative names those of GeneralNames."""

    subject: bytes
    not_before: datetime
    not_after: datetime
    alternative_names: frozenset[bytes]


def parse_certificate(data: bytes) -> Certificate:
    """Read a certificate in DER; its signature is not looked at. Raises: BadDer."""
    signed = der.read_tagged(der.read_only(data, der.SEQUENCE).content, der.SEQUENCE)
    fields = list(der.iter_elements(signed.content))
    if fields and fields[0].tag == der.CONTEXT_0:
        del fields[0]  # the version
    if len(fields) < 6 or any(fields[i].tag != der.SEQUENCE for i in (1, 2, 3, 4, 5)):
        raise BadDer("not an X.509 certificate")
    period = list(der.iter_elements(fields[3].content))
    if len(period) != 2:
        raise BadDer("a certificate's validity is not two times")
    return Certificate(
        fields[4].encoded, _parse_time(period[0]), _parse_time(period[1]), _find_alternative_names(fields[6:])
    )


def _parse_time(element: Element) -> datetime:
    """RFC 5280, 4.1.2.5: in UTC, with seconds; of two digits of a year, 50 to 99 mean the last century."""
    match = _TIME.fullmatch(element.content)
    if match is None or element.tag not in (der.UTC_TIME, der.GENERALIZED_TIME):
        raise BadDer(f"{element.content!r} is not a time")
    year, *rest = map(int, match.groups())
    if element.tag == der.UTC_TIME:
        year += 1900 if year >= 50 else 2000
    try:
        return datetime(year, *rest, tzinfo=UTC)  # type: ignore[misc, arg-type]
    except ValueError as exc:
        raise BadDer(f"{element.content!r} is not a time") from exc


def _find_alternative_names(fields: list[Element]) -> frozenset[bytes]:
    for field in fields:
        if field.tag != der.CONTEXT_3:
            continue
        for extension in der.iter_elements(der.read_only(field.content, der.SEQUENCE).content):
            parts = list(der.iter_elements(extension.content))
            if not parts or parts[0].tag != der.OBJECT_IDENTIFIER or parts[-1].tag != der.OCTET_STRING:
                raise BadDer("a certificate has an extension without name or value")
            if der.format_oid(parts[0].content) == _SUBJECT_ALTERNATIVE_NAME:
                names = der.read_only(parts[-1].content, der.SEQUENCE)
                return frozenset(name.encoded for name in der.iter_elements(names.content))
    return frozenset()
