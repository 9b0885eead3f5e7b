"""Text for a terminal: what others have named must not steer it.

Ids and names are chosen by every client of a cluster, and error texts by its brokers. A control sequence in
one of them could clear an administrator's screen, or make a row look like another one.
"""

import re
from typing import Final

# The controls of ASCII and Latin-1 but for the line feed, and what changes the direction of writing.
_STEERING: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def make_printable(text: str, *, one_line: bool = False) -> str:
    r"""Return the text with controls as escapes, such as \x1b.

    Args:
        one_line: escape line feeds as well.
    """
    if text.isprintable():
        return text
    escaped_text = _STEERING.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
    return escaped_text.replace("\n", r"\n") if one_line else escaped_text
