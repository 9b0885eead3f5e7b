"""Declared settings: Kafka's dotted name, bounds and text form of each.

A configuration is a frozen dataclass whose fields are made by `setting()`; the field name with dots for
underscores is Kafka's name. `problems_in` and `build_config` work on any such class, so broker and topic
configurations are checked, shown and documented by the same code.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, fields
from enum import IntEnum
from typing import Final, TypeVar, cast

from tallystick import _lazy
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import INT32_MAX, INT64_MAX
from tallystick.kernel.secret import Secret
from tallystick.kernel.value import Value, replace

SettingValue = bool | int | float | str | tuple[str, ...] | Secret | None
T = TypeVar("T", bound=SettingValue)
C = TypeVar("C")

_META: Final = "tallystick.setting"
# java.util.Properties.load: `\uXXXX`, four letters, and any other character for itself.
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_DECLARED: Final[dict[type, tuple[tuple[str, "Setting"], ...]]] = {}


class BadConfig(TallystickError):
    """All problems of a configuration, one per line."""


@contextmanager
def collect_problems(problems: list[str]) -> Iterator[None]:
    """Add the problems of a BadConfig to a list, to be reported with those of the next step."""
    try:
        yield
    except BadConfig as exc:
        problems += str(exc).splitlines()


class SettingType(IntEnum):
    """The type of a setting, with its number in DescribeConfigs responses (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


_BOUNDS: Final = {SettingType.INT: INT32_MAX, SettingType.LONG: INT64_MAX}


class Synonym(Value, kw_only=True):
    """A broker setting that a topic setting falls back to; its value times `scale`."""

    name: str
    scale: int = 1


class Setting(Value, kw_only=True):
    """One setting.

    name       Kafka's dotted name; empty until the class's field gives it
    none       the text for "no limit" or "not set": -1 or empty on the wire, None inside
    dynamic    may be changed while the broker runs
    synonyms   broker settings a topic's setting falls back to, strongest first
    """

    name: str = ""
    kind: SettingType
    default: SettingValue
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    none: str | None = None
    dynamic: bool = False
    synonyms: tuple[Synonym, ...] = ()

    def parse(self, text: str) -> SettingValue:
        """Parse `text`. Raises ValueError naming the allowed values."""
        text = text.strip()
        if self.none is not None and text == self.none:
            return None
        match self.kind:
            case SettingType.BOOLEAN:
                return self._parse_bool(text)
            case SettingType.INT | SettingType.LONG:
                return int(self._check_bounds(text, int(text) if _is_integer(text) else None))
            case SettingType.DOUBLE:
                return self._check_bounds(text, _parse_float(text))
            case SettingType.LIST:
                values = tuple(part.strip() for part in text.split(",") if part.strip())
                for value in values:
                    self._check_choice(value)
                return values
            case SettingType.STRING:
                return self._check_choice(text)
            case SettingType.PASSWORD:
                return Secret(text)

    def format(self, value: SettingValue) -> str | None:
        """Format a value so that `parse` reads it back.

        Return None for None without a text of its own, and for a secret: DescribeConfigs never answers one.
        """
        match value:
            case Secret():
                return None
            case None:
                return self.none or None
            case bool():
                return "true" if value else "false"
            case tuple():
                return ",".join(value)
            case _:
                return str(value)

    def describe_allowed(self) -> str:
        """Describe the allowed values in words."""
        if self.kind is SettingType.BOOLEAN:
            return "true or false"
        if self.choices:
            word = "any of" if self.kind is SettingType.LIST else "one of"
            return f"{word} {', '.join(self.choices)}"
        if self.kind in (SettingType.INT, SettingType.LONG, SettingType.DOUBLE):
            span = (
                f"{self.kind.name.lower()}, {_format_number(self.low)} to {_format_number(self._get_high())}"
            )
            return span if not self.none else f"{span}, or {self.none} for none"
        return self.kind.name.lower()

    def _get_high(self) -> float | None:
        return self.high if self.high is not None else _BOUNDS.get(self.kind)

    def _parse_bool(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{text!r} is not {self.describe_allowed()}")
        return text.lower() == "true"

    def _check_bounds(self, text: str, value: float | None) -> float:
        high = self._get_high()
        too_low = value is not None and self.low is not None and value < self.low
        too_high = value is not None and high is not None and value > high
        if value is None or too_low or too_high:
            raise ValueError(f"{text!r} is not {self.describe_allowed()}")
        return value

    def _check_choice(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise ValueError(f"{text!r} is not {self.describe_allowed()}")
        return text


def setting(default: T, doc: str, **more: object) -> T:
    """Declare a field of a configuration class; `more` are the attributes of Setting.

    The kind follows from the default unless given: bool, int (LONG unless kind=INT), float, str, tuple.
    """
    kind = more.pop("kind", None) or _infer_type(default)
    spec = Setting(kind=cast(SettingType, kind), default=default, doc=doc, **more)  # type: ignore[arg-type]
    field_: T = field(default=default, metadata={_META: spec})
    return field_


def secret_setting(doc: str) -> Secret | None:
    """Declare a field whose value is never shown; empty or None for none."""
    secret: Secret | None = setting(None, doc, kind=SettingType.PASSWORD, none="")
    return secret


def list_settings(cls: type) -> dict[str, Setting]:
    """Return the settings of a configuration class by dotted name, in order of declaration."""
    return {spec.name: spec for _, spec in _collect_settings(cls)}


def build_config(cls: type[C], texts: Mapping[str, str], **more: object) -> C:
    """Build an instance of `cls` from texts by dotted name.

    Raises: BadConfig with every bad value and unknown name. The class itself defines cross-field rules, in
        `problems(self) -> Iterator[str]`.
    """
    values, problems = parse_values(cls, texts)
    if not problems:
        config = cls(**{**more, **values})
        rules = getattr(config, "problems", None)
        problems = list(rules()) if rules is not None else []
        if not problems:
            return config
    raise BadConfig("\n".join(problems))


def parse_values(cls: type, texts: Mapping[str, str]) -> tuple[dict[str, object], list[str]]:
    """Parse `texts` into values by attribute of `cls`, and list every bad value and unknown name."""
    settings = {spec.name: (attribute, spec) for attribute, spec in _collect_settings(cls)}
    values: dict[str, object] = {}
    problems = []
    for name, text in texts.items():
        if name not in settings:
            problems.append(describe_unknown(name, settings))
            continue
        attribute, spec = settings[name]
        try:
            values[attribute] = spec.parse(text)
        except ValueError as exc:
            problems.append(f"{name}: {exc}")
    return values, problems


def describe_unknown(name: str, names: Mapping[str, object]) -> str:
    """Return the message for an undeclared name, with the most similar declared one."""
    near = _lazy.load("difflib").get_close_matches(name, names, n=1, cutoff=0.6)
    return f"{name}: unknown setting" + (f"; did you mean {near[0]}?" if near else "")


def read_properties(text: str, source: str) -> dict[str, str]:
    r"""Parse a `server.properties` file: `#` and `!` comments, `=` or `:`, lines continued with `\`.

    A backslash escapes as in java.util.Properties: a JAAS string with `\"` in a file that Kafka reads has the
    same value here.

    Raises: BadConfig naming each line that is not `name=value`, and each duplicate name.
    """
    values: dict[str, str] = {}
    problems = []
    for number, line in _iter_logical_lines(text):
        at = min((i for i in (line.find("="), line.find(":")) if i >= 0), default=-1)
        name = line[:at].strip()
        if at < 1 or not name:
            # The line is not shown: it may be one of a private key, or end a password.
            problems.append(
                f"{source}:{number}: not name=value; a value on several lines needs a \\ at their ends"
            )
        elif name in values:
            problems.append(f"{source}:{number}: {name} is set twice; keep one of the lines")
        else:
            try:
                values[name] = _unescape(line[at + 1 :].lstrip())
            except ValueError:
                problems.append(
                    f"{source}:{number}: \\u takes four hexadecimal digits; write \\\\ for a backslash"
                )
    if problems:
        raise BadConfig("\n".join(problems))
    return values


def _iter_logical_lines(text: str) -> Iterator[tuple[int, str]]:
    first, pending = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not pending and (not line or line[0] in "#!"):
            continue
        first = first if pending else number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        yield first, pending + line
        pending = ""
    if pending:
        yield first, pending


def _unescape(text: str) -> str:
    r"""Replace the escapes of java.util.Properties; a backslash before any other character goes."""
    if "\\" not in text:
        return text
    # Java's characters are of UTF-16: two escapes may be one character.
    return _ESCAPE.sub(_replace_escape, text).encode("utf-16", "surrogatepass").decode("utf-16")


def _replace_escape(match: re.Match[str]) -> str:
    code, letter = match[1], match[2]
    if code is not None:
        return chr(int(code, 16))
    if letter == "u":
        raise ValueError("u without four digits")
    return _ESCAPED.get(letter, letter)


def _collect_settings(cls: type) -> tuple[tuple[str, Setting], ...]:
    """Return attribute and setting of every declared field, cached per class."""
    if cls not in _DECLARED:
        _DECLARED[cls] = tuple(
            (f.name, replace(f.metadata[_META], name=f.name.replace("_", ".")))
            for f in fields(cls)
            if _META in f.metadata
        )
    return _DECLARED[cls]


def _infer_type(default: SettingValue) -> SettingType:
    match default:
        case bool():
            return SettingType.BOOLEAN
        case int():
            return SettingType.LONG
        case float():
            return SettingType.DOUBLE
        case tuple():
            return SettingType.LIST
        case _:
            return SettingType.STRING


def _is_integer(text: str) -> bool:
    return text.lstrip("+-").isdecimal() and text.isascii() and len(text) <= 20


def _parse_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _format_number(value: float | None) -> str:
    return "any" if value is None else f"{int(value)}" if value == int(value) else f"{value}"
