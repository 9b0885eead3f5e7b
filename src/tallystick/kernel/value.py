"""The base of immutable values.

    class Point(Value):
        x: int
        y: int = 0

A value is a frozen `msgspec.Struct`: equality and hash by content, `match` by position, no assignment, one
C call to make one (docs/adr/0003). A class whose fields carry metadata of their own (the settings), or whose
instances change, is a dataclass.
"""

from typing import TYPE_CHECKING, dataclass_transform

import msgspec
from msgspec import field

from tallystick.kernel.secret import hide_logins

if TYPE_CHECKING:
    from dataclasses import replace as replace  # type checkers check the arguments by this name
else:
    from msgspec.structs import replace as replace

# A log line must not carry a megabyte.
REPR_BYTES_MAX = 64


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(msgspec.Struct, frozen=True):
    """A frozen value. Its repr has the size of long bytes, not their content, and no login of a URL."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={brief_repr(getattr(self, name))}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({fields})"


def brief_repr(content: object) -> str:
    """Return the repr, or the size if it is long: a log line must not carry a megabyte."""
    if isinstance(content, (bytes, bytearray, memoryview)) and len(content) > REPR_BYTES_MAX:
        return f"<{len(content)} bytes>"
    return hide_logins(repr(content))
