"""ssl.principal.mapping.rules: the short name that a certificate's distinguished name stands for.

`RULE:pattern/replacement/[LU]` and `DEFAULT`, separated by commas. The first rule whose pattern matches the
whole name decides; `DEFAULT` leaves the name as it is; if none matches, the client is refused.

Patterns are Java's. Python's differ from them in what few rules use: that is translated where it can be, and
refused where it cannot, since a rule that matches other names gives out other rights.

Source: KIP-371; Kafka SslPrincipalMapper.
"""

import re
from collections.abc import Iterator
from typing import Final

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value

DEFAULT: Final = "DEFAULT"
_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(?:.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(?:,\s*|$)")
_PARSER: Final = re.compile(_RULE)
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)
# Java's `.` stops at these too; no name of a client has a reason to hold one.
_LINE_ENDS: Final = frozenset("\r\x85\u2028\u2029")


class NoMatchingRule(TallystickError):
    """No rule applies to the name of a certificate."""


class PrincipalRule(Value):
    """One rule; without a pattern it is DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str  # L, U or empty

    def apply(self, name: str) -> str | None:
        """Return the name that this rule makes of `name`; None if it does not apply."""
        if self.pattern is None:
            return name
        if _LINE_ENDS.intersection(name) or self.pattern.fullmatch(name) is None:
            return None
        # As Java's replaceAll does: not only the whole name is replaced, if an earlier match is shorter.
        short = self.pattern.sub(lambda match: _expand(self.replacement, match), name)
        return short.lower() if self.case == "L" else short.upper() if self.case == "U" else short


def parse_principal_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Parse the setting's text. Raises: BadConfig, also for a rule that is never reached."""
    rules = tuple(_iter_rules(text.strip()))
    if not rules:
        raise BadConfig("ssl.principal.mapping.rules: there is no rule, and no client would be let in")
    for number, rule in enumerate(rules, 1):
        if rule.pattern is None and number < len(rules):
            raise BadConfig(f"ssl.principal.mapping.rules: the rules behind {DEFAULT} are never reached")
    return rules


def map_principal(rules: tuple[PrincipalRule, ...], name: str) -> str:
    """Return the short name of a distinguished name. Raises: NoMatchingRule."""
    for rule in rules:
        short = rule.apply(name)
        if short is not None:
            if not short:
                raise NoMatchingRule(f"ssl.principal.mapping.rules make an empty name of {name!r}")
            return short
    raise NoMatchingRule(f"no rule of ssl.principal.mapping.rules applies to {name!r}")


def _iter_rules(text: str) -> Iterator[PrincipalRule]:
    for part in _SPLITTER.finditer(text):
        rule = part.group(1)
        parsed = _PARSER.match(rule)
        if parsed is None or parsed.end() != len(rule):
            raise BadConfig(
                f"ssl.principal.mapping.rules: {rule!r} is neither DEFAULT nor RULE:pattern/replacement/[LU]"
            )
        is_default, pattern, replacement, case = parsed.groups()
        if is_default is not None:
            yield PrincipalRule(None, "", "")
        elif pattern is not None:
            compiled = _compile(pattern)
            if not compiled.groups and any(
                digits not in ("", "0") for _, digits in _REFERENCE.findall(replacement)
            ):
                raise BadConfig(
                    f"ssl.principal.mapping.rules: {replacement!r} refers to a group, {pattern!r} has none"
                )
            yield PrincipalRule(compiled, replacement, case or "")


def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of Java: ASCII classes, `(?<name>...)` for a named group."""
    if "&&" in pattern:
        raise BadConfig(f"ssl.principal.mapping.rules: {pattern!r}: && in a class is Java's alone")
    try:
        return re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern), re.ASCII)
    except re.error as exc:
        raise BadConfig(f"ssl.principal.mapping.rules: {pattern!r} is no pattern here: {exc}") from exc


def _expand(replacement: str, match: re.Match[str]) -> str:
    """Fill in `$1`. A reference to no group stays as it is written; `$12` is `$1` and a 2 if need be."""

    def fill(reference: re.Match[str]) -> str:
        escaped, digits = reference.groups()
        if digits is None:
            return str(escaped)
        groups = match.re.groups
        for size in range(len(digits), 0, -1):
            if int(digits[:size]) <= groups:
                return (match.group(int(digits[:size])) or "") + digits[size:]
        return str(reference.group())

    return _REFERENCE.sub(fill, replacement)
