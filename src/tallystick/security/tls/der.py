"""Read DER (X.690) as far as certificates and private keys need it; every length is checked before use."""

from collections.abc import Iterator
from typing import Final

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value

BOOLEAN: Final = 0x01
INTEGER: Final = 0x02
OCTET_STRING: Final = 0x04
OBJECT_IDENTIFIER: Final = 0x06
UTF8_STRING: Final = 0x0C
PRINTABLE_STRING: Final = 0x13
T61_STRING: Final = 0x14
IA5_STRING: Final = 0x16
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
BMP_STRING: Final = 0x1E
SEQUENCE: Final = 0x30
SET: Final = 0x31
CONTEXT_0: Final = 0xA0
CONTEXT_3: Final = 0xA3

# A UUID under 2.25, the longest in use, has 20. Reading a number costs the square of its length, and Python
# prints none of more than 4,300 digits.
_OBJECT_IDENTIFIER_BYTES_MAX: Final = 256


class BadDer(TallystickError):
    """Bytes that are not the DER they should be."""


class Element(Value):
    """One element: its tag, its content, and the whole of it in DER."""

    tag: int
    content: bytes
    encoded: bytes


def read_element(data: bytes, at: int = 0) -> Element:
    """Read the element that starts at `at`. Raises: BadDer."""
    if at + 2 > len(data):
        raise BadDer(f"an element at byte {at} is cut off")
    tag, size, start = data[at], data[at + 1], at + 2
    if tag & 0x1F == 0x1F:
        raise BadDer(f"an element at byte {at} has a tag of several bytes")
    if size & 0x80:
        width = size & 0x7F
        if not 1 <= width <= 4 or start + width > len(data):
            raise BadDer(f"an element at byte {at} has a length of {width} bytes")
        size = int.from_bytes(data[start : start + width], "big")
        start += width
    if start + size > len(data):
        raise BadDer(f"an element at byte {at} promises {size} bytes, {len(data) - start} are there")
    return Element(tag, data[start : start + size], data[at : start + size])


def read_only(data: bytes, tag: int) -> Element:
    """Read the one element that `data` consists of. Raises: BadDer, also for bytes after it."""
    element = read_tagged(data, tag)
    if len(element.encoded) != len(data):
        raise BadDer(f"{len(data) - len(element.encoded)} bytes follow the element")
    return element


def read_tagged(data: bytes, tag: int) -> Element:
    """Read the first element of `data`, which must have this tag. Raises: BadDer."""
    element = read_element(data)
    if element.tag != tag:
        raise BadDer(f"an element has tag {element.tag:#x} where {tag:#x} must be")
    return element


def iter_elements(data: bytes) -> Iterator[Element]:
    """Yield the elements that `data` consists of. Raises: BadDer."""
    at = 0
    while at < len(data):
        element = read_element(data, at)
        yield element
        at += len(element.encoded)


def format_oid(content: bytes) -> str:
    """Return an object identifier in dotted form. Raises: BadDer."""
    if len(content) > _OBJECT_IDENTIFIER_BYTES_MAX:
        raise BadDer(f"an object identifier of {len(content)} bytes")
    if not content or content[-1] & 0x80:
        raise BadDer("an object identifier is cut off")
    arcs, arc = [], 0
    for byte in content:
        arc = arc << 7 | byte & 0x7F
        if not byte & 0x80:
            arcs.append(arc)
            arc = 0
    first = min(arcs[0] // 40, 2)
    return ".".join(map(str, [first, arcs[0] - 40 * first, *arcs[1:]]))
