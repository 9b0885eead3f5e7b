"""Codec generator: declaration + version -> two Python functions, compiled on first use.

A codec that walks the declaration for every message spends its time on decisions that never change. Here
they are made once: the generated source holds only what this version needs, adjacent fields of fixed size
become one `struct` call (including the next length prefix), and nested structs are inlined. Compiling a
codec costs about a millisecond, once, and only for versions in use.

Generated code never trusts a length. Every read is bounded by the buffer: `struct` and indexing raise
beyond its end, and the ends of slices are checked first. Every count is checked against the bytes left
before anything is allocated, and all counted elements draw on one memory budget (`_SizeBounds`), so that
decoding costs at most DECODE_MEMORY_BASE_BYTES plus four times the frame [WIRE-2].

This is the only module that uses `Any`: it works on classes that exist only as declarations.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tallystick.kernel.check import check
from tallystick.kernel.limits import (
    ARRAY_ELEMENTS_MAX,
    DECODE_MEMORY_BASE_BYTES,
    MESSAGE_ELEMENTS_MAX,
    STRING_BYTES_MAX,
    TAGGED_FIELDS_MAX,
)
from tallystick.protocol.errors import DecodeError, EncodeError, UnsupportedField, UnsupportedVersion
from tallystick.protocol.primitives import (
    SHORT_UVARINTS,
    Buffer,
    encode_uvarint,
    make_uuid,
    read_uvarint,
)
from tallystick.protocol.wire import (
    BYTES,
    INT16,
    INT32,
    STRING,
    UUID,
    ArrayType,
    FieldSpec,
    MessageSpec,
    ScalarType,
    StructSpec,
    WireType,
    message_spec,
    struct_spec,
)

Decoder = Callable[..., tuple[Any, int]]  # arguments: buffer, position, optionally the memory budget
Encoder = Callable[[Any], list[Buffer]]

# The memory budget. The rest of DECODE_MEMORY_BASE_BYTES is for what is not counted: the generated
# functions, temporary lists, the allocator's rounding.
DECODE_MEMORY_BYTES: Final = DECODE_MEMORY_BASE_BYTES - DECODE_MEMORY_BASE_BYTES // 8
# Minimum cost of an element, so that the budget bounds the number of elements as well.
ELEMENT_BYTES_MIN: Final = DECODE_MEMORY_BYTES // MESSAGE_ELEMENTS_MAX
_UNKNOWN_TAG_BYTES: Final = 200

check(ELEMENT_BYTES_MIN > 0, "an element must cost something")

_FIXED_BYTES: Final = {letter: struct.calcsize(f">{letter}") for letter in "?bBhHiIqd"} | {"16s": 16}


def get_encoder(cls: type, version: int) -> Encoder:
    """Return the compiled function `value -> list of buffers` for one class and version."""
    made: Encoder = _compile_cached(_ENCODERS, cls, version, _EncodeSource)
    return made


def get_decoder(cls: type, version: int) -> Decoder:
    """Return the compiled function `(view, at) -> (value, next)` for one class and version."""
    made: Decoder = _compile_cached(_DECODERS, cls, version, _DecodeSource)
    return made


def generate_source(cls: type, version: int) -> str:
    """Return both generated functions as text, for reading and debugging."""
    spec = message_spec(cls)
    return f"{_DecodeSource(spec, version).text()}\n\n{_EncodeSource(spec, version).text()}\n"


_ENCODERS: Final[dict[tuple[type, int], Encoder]] = {}
_DECODERS: Final[dict[tuple[type, int], Decoder]] = {}


def _compile_cached(
    cache: dict[tuple[type, int], Any], cls: type, version: int, kind: type["_CodecSource"]
) -> Any:
    found = cache.get((cls, version))
    if found is None:
        spec = message_spec(cls)
        if version not in spec.versions:
            known = f"{spec.versions.first}-{spec.versions.last}"
            raise UnsupportedVersion(f"{cls.__name__} has versions {known}, not {version}")
        found = cache[cls, version] = kind(spec, version).function()
    return found


# ------------------------------------------------------------------------------ source text


class _CodecSource:
    """Python source under construction: its lines, the constants they name, and pending fixed-size fields.

    `pending` holds (struct letter, expression or target) pairs that the next `flush` turns into one call.
    """

    name = "codec"

    def __init__(self, spec: MessageSpec, version: int) -> None:
        self.spec, self.version = spec, version
        self.flexible = version in spec.flexible
        self.lines: list[str] = []
        self.depth = 2  # inside `def` and `try`
        self.serial = 0
        self.names: dict[str, Any] = dict(_RUNTIME)
        self.pending: list[tuple[str, str]] = []

    def emit_line(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.emit_line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def make_name(self, stem: str) -> str:
        """Return an unused variable name, because nested structs are inlined into one function."""
        self.serial += 1
        return f"{stem}{self.serial}"

    def constant(self, value: object, stem: str = "k") -> str:
        name = self.make_name(stem)
        self.names[name] = value
        return name

    def packer(self, letters: str, method: str) -> str:
        name = f"{method}_{letters.replace('?', 'o')}"
        self.names[name] = getattr(struct.Struct(f">{letters}"), method)
        return name

    def list_fields(self, struct_: StructSpec, *, tagged: bool) -> list[FieldSpec]:
        fields = [
            f
            for f in struct_.fields
            if self.version in f.wire.versions and f.is_tagged(self.version) is tagged
        ]
        return sorted(fields, key=lambda f: f.wire.tag or 0) if tagged else fields

    @contextmanager
    def compactness(self, f: FieldSpec) -> Iterator[None]:
        """Keep the client id of a request header in its non-compact form, readable by the oldest broker."""
        flexible, self.flexible = self.flexible, self.flexible and f.wire.compact
        yield
        self.flexible = flexible

    def text(self) -> str:
        raise NotImplementedError

    def function(self) -> Any:
        text = self.text()
        where = f"<{self.name} {self.spec.struct.cls.__name__} v{self.version}>"
        exec(compile(text, where, "exec"), self.names)
        return self.names[self.name]


# ---------------------------------------------------------------------------------- decoding


class _DecodeSource(_CodecSource):
    """Generates `decode(buf, at, room)`; `at` moves over `buf` up to `end`; `room` is the memory budget."""

    name = "decode"

    def text(self) -> str:
        self.lines.clear()
        self.emit_line("end = len(buf)")
        value = self.struct_(self.spec.struct)
        self.emit_line(f"return {value}, at")
        label = f"{self.spec.struct.cls.__name__} v{self.version}"
        body = "\n".join(self.lines)
        return (
            f"def decode(buf, at, room={DECODE_MEMORY_BYTES}):\n    try:\n{body}\n"
            f"    except (StructError, IndexError):\n"
            f"        raise DecodeError(f'{label}: cut off, at the end of {{len(buf)}} bytes') from None\n"
            f"    except UnicodeDecodeError as error:\n"
            f"        raise DecodeError(f'{label}: a string is not UTF-8: {{error.reason}}') from None"
        )

    # ---- runs of fixed-size fields

    def flush(self) -> None:
        if not self.pending:
            return
        letters = "".join(letter for letter, _ in self.pending)
        targets = [target for _, target in self.pending]
        size = sum(_FIXED_BYTES[letter] for letter, _ in self.pending)
        if letters == "B":
            self.emit_line(f"{targets[0]} = buf[at]")
        else:
            self.emit_line(f"{', '.join(targets)}, = {self.packer(letters, 'unpack_from')}(buf, at)")
        self.emit_line(f"at += {size}")
        for letter, target in self.pending:
            if letter == "16s":
                self.emit_line(f"{target} = uuid_from({target})")
        self.pending.clear()

    def length(self, what: str, classic: ScalarType) -> str:
        """Emit the read of a length or count into a variable that is -1 for null in both encodings."""
        n = self.make_name("n")
        if self.flexible:
            self.pending.append(("B", n))
            self.flush()
            self.emit_line(f"if {n} > 127: {n}, at = read_uvarint(buf, at - 1)")
            self.emit_line(f"{n} -= 1")
        else:
            self.pending.append((classic.format or "", n))
            self.flush()
        return n

    # ---- values

    def value(self, kind: WireType, nullable: bool, what: str) -> str:
        """Emit the read of one value; return its variable, valid after the next flush."""
        target = self.make_name("v")
        if isinstance(kind, ArrayType):
            self.array(kind, nullable, what, target)
        elif not isinstance(kind, ScalarType):
            self.nested(kind, nullable, target)
        elif kind.format is not None:
            self.pending.append((kind.format, target))
        else:
            self.sized(kind, nullable, what, target)
        return target

    def sized(self, kind: ScalarType, nullable: bool, what: str, target: str) -> None:
        n = self.length(what, INT16 if kind is STRING else INT32)
        stop = self.make_name("e")
        take = {STRING: f"str(buf[at:{stop}], 'utf-8')", BYTES: f"bytes(buf[at:{stop}])"}
        with self.null_or(nullable, n, target):
            self.emit_line(f"{stop} = at + {n}")
            too_long = f" or {n} > {STRING_BYTES_MAX}" if kind is STRING and self.flexible else ""
            negative = "" if nullable else f"{n} < 0 or "
            self.emit_line(f"if {negative}{stop} > end{too_long}: raise bad_length({what!r}, {n}, end - at)")
            self.emit_line(f"{target} = {take.get(kind, f'buf[at:{stop}]')}")
            self.emit_line(f"at = {stop}")

    @contextmanager
    def null_or(self, nullable: bool, n: str, target: str) -> Iterator[None]:
        if not nullable:
            yield
            return
        self.emit_line(f"if {n} < 0: {target} = None")
        with self.block("else:"):
            yield

    def array(self, kind: ArrayType, nullable: bool, what: str, target: str) -> None:
        n = self.length(what, INT32)
        cost = _SizeBounds(self.version, self.flexible)
        wire_min, price = max(1, cost.wire_min(kind.element)), cost.compute_charge(kind.element)
        with self.null_or(nullable, n, target):
            self.emit_line(f"room -= {n} * {price}")
            negative = "" if nullable else f"{n} < 0 or "
            bound = f"(end - at) // {wire_min}" if wire_min > 1 else "end - at"
            self.emit_line(
                f"if {negative}{n} > {bound} or {n} > {ARRAY_ELEMENTS_MAX} or room < 0: "
                f"raise bad_count({what!r}, {n}, end - at)"
            )
            element = kind.element
            if isinstance(element, ScalarType) and element.format is not None and element is not UUID:
                self.emit_line(f"{target} = unpack_from(f'>{{{n}}}{element.format}', buf, at)")
                self.emit_line(f"at += {n} * {_FIXED_BYTES[element.format]}")
                return
            self.emit_line(f"{target} = []")
            with self.block(f"for _ in range({n}):"):
                item = self.value(element, nullable=False, what=f"{what}[]")
                self.flush()
                self.emit_line(f"{target}.append({item})")
            self.emit_line(f"{target} = tuple({target})")

    def nested(self, cls: type, nullable: bool, target: str) -> None:
        if not nullable:
            self.emit_line(f"{target} = {self.struct_(struct_spec(cls))}")
            return
        there = self.make_name("n")
        self.pending.append(("b", there))
        self.flush()
        with self.null_or(True, there, target):
            self.emit_line(f"{target} = {self.struct_(struct_spec(cls))}")

    def struct_(self, struct_: StructSpec) -> str:
        """Emit the read of a struct with its tagged fields; return its variable."""
        values: dict[str, str] = {}
        for f in self.list_fields(struct_, tagged=False):
            what = f"{struct_.cls.__name__}.{f.name}"
            with self.compactness(f):
                values[f.name] = self.value(f.wire.kind, self.version in f.wire.nullable, what)
        tagged = self.list_fields(struct_, tagged=True)
        for f in tagged:
            values[f.name] = self.make_name("v")
        if self.flexible:
            values["unknown_tags"] = self.tags(struct_, tagged, values)
        self.flush()
        # What this version lacks has its default from the class, unless the constructor requires it.
        absent = {f.name: self.constant(f.default, "zero") for f in struct_.fields if f.required}
        arguments = ", ".join(f"{name}={variable}" for name, variable in (absent | values).items())
        struct_value = self.make_name("s")
        self.emit_line(f"{struct_value} = {self.constant(struct_.cls, 'cls')}({arguments})")
        return struct_value

    def tags(self, struct_: StructSpec, tagged: list[FieldSpec], values: dict[str, str]) -> str:
        count, unknown, tag, stop = (self.make_name(stem) for stem in ("n", "u", "t", "e"))
        self.pending.append(("B", count))
        self.flush()
        for f in tagged:
            self.emit_line(f"{values[f.name]} = {self.constant(f.default, 'default')}")
        self.emit_line(f"{unknown} = ()")
        with self.block(f"if {count}:"):
            self.emit_line(f"if {count} > 127: {count}, at = read_uvarint(buf, at - 1)")
            self.emit_line(
                f"if {count} > {TAGGED_FIELDS_MAX}: raise bad_count('tagged fields', {count}, end - at)"
            )
            self.emit_line(f"{unknown} = []")
            with self.block(f"for _ in range({count}):"):
                self.emit_line(f"{tag}, at = read_uvarint(buf, at)")
                self.emit_line(f"{stop}, at = read_uvarint(buf, at)")
                self.emit_line(f"{stop} += at")
                self.emit_line(f"if {stop} > end: raise bad_length('tagged field', {stop} - at, end - at)")
                self.one_tag(struct_, tagged, values, (tag, stop, unknown))
            self.emit_line(f"{unknown} = tuple({unknown})")
        return unknown

    def one_tag(
        self,
        struct_: StructSpec,
        tagged: list[FieldSpec],
        values: dict[str, str],
        names: tuple[str, str, str],
    ) -> None:
        tag, stop, unknown = names
        cost = _SizeBounds(self.version, self.flexible)
        for position, f in enumerate(tagged):
            with self.block(f"{'elif' if position else 'if'} {tag} == {f.wire.tag}:"):
                self.emit_line(f"room -= {cost.compute_charge(f.wire.kind)}")
                what = f"{struct_.cls.__name__}.{f.name}"
                value = self.value(f.wire.kind, self.version in f.wire.nullable, what)
                self.flush()
                self.emit_line(f"{values[f.name]} = {value}")
                self.emit_line(f"if at != {stop}: raise bad_tag({what!r}, at - {stop})")
        with self.block("else:" if tagged else "if True:"):
            self.emit_line(f"room -= {_UNKNOWN_TAG_BYTES}")
            self.emit_line(f"if room < 0: raise bad_count('tagged fields', {tag}, end - at)")
            self.emit_line(f"{unknown}.append(({tag}, bytes(buf[at:{stop}])))")
            self.emit_line(f"at = {stop}")


# ---------------------------------------------------------------------------------- encoding


class _EncodeSource(_CodecSource):
    """Generates `encode(m)`, which returns a list of buffers that form the message."""

    name = "encode"

    def __init__(self, spec: MessageSpec, version: int) -> None:
        super().__init__(spec, version)
        self.write = "w"  # the append method of the list being filled

    def text(self) -> str:
        self.lines.clear()
        self.emit_line("out = []")
        self.emit_line("w = out.append")
        self.struct_(self.spec.struct, "m")
        self.flush()
        self.emit_line("return out")
        label = f"{self.spec.struct.cls.__name__} v{self.version}"
        body = "\n".join(self.lines)
        return (
            f"def encode(m):\n    try:\n{body}\n"
            f"    except (StructError, UnicodeEncodeError) as error:\n"
            f"        raise EncodeError(f'{label}: {{error}}') from error"
        )

    # ---- runs of fixed-size fields

    def flush_expression(self, extra: tuple[tuple[str, str], ...] = ()) -> str:
        """Return the expression that packs the pending fields and `extra`."""
        fields = [*self.pending, *extra]
        letters = "".join(letter for letter, _ in fields)
        return f"{self.packer(letters, 'pack')}({', '.join(e for letter, e in fields if letter != 'x')})"

    def flush(self) -> None:
        if self.pending:
            self.emit_line(f"{self.write}({self.flush_expression()})")
        self.pending.clear()

    def length(self, n: str, classic: ScalarType, wide: str) -> None:
        """Emit the write of a length or count `n` (-1 for null); `wide` writes one that needs two bytes."""
        if not self.flexible:
            self.pending.append((classic.format or "", n))
            self.flush()
            return
        self.emit_line(f"{n} += 1")
        short = self.flush_expression((("B", n),)) if self.pending else f"SHORT_UVARINTS[{n}]"
        self.emit_line(f"if {n} < 128: {self.write}({short})")
        with self.block("else:"):
            if self.pending:
                self.emit_line(f"{self.write}({self.flush_expression()})")
            self.emit_line(f"{self.write}({wide}({n}))")
        self.pending.clear()

    # ---- values

    def value(self, kind: WireType, nullable: bool, expression: str) -> None:
        if isinstance(kind, ArrayType):
            self.array(kind, nullable, expression)
        elif not isinstance(kind, ScalarType):
            self.nested(kind, nullable, expression)
        elif kind.format is not None:
            self.pending.append((kind.format, f"{expression}.bytes" if kind is UUID else expression))
        else:
            self.sized(kind, nullable, expression)

    def sized(self, kind: ScalarType, nullable: bool, expression: str) -> None:
        raw, n = self.make_name("r"), self.make_name("n")
        convert = f"{expression}.encode()" if kind is STRING else expression
        if nullable:
            self.emit_line(f"{raw} = {expression}")
            self.emit_line(f"if {raw} is None: {raw} = b''; {n} = -1")
            with self.block("else:"):
                if kind is STRING:
                    self.emit_line(f"{raw} = {raw}.encode()")
                self.emit_line(f"{n} = len({raw})")
        else:
            self.emit_line(f"{raw} = {convert}")
            self.emit_line(f"{n} = len({raw})")
        self.length(
            n, INT16 if kind is STRING else INT32, "long_string" if kind is STRING else "encode_uvarint"
        )
        self.emit_line(f"{self.write}({raw})")

    def array(self, kind: ArrayType, nullable: bool, expression: str) -> None:
        items, n = self.make_name("a"), self.make_name("n")
        self.emit_line(f"{items} = {expression}")
        if nullable:
            self.emit_line(f"if {items} is None: {items} = (); {n} = -1")
            self.emit_line(f"else: {n} = len({items})")
        else:
            self.emit_line(f"{n} = len({items})")
        self.length(n, INT32, "encode_uvarint")
        element = kind.element
        if isinstance(element, ScalarType) and element.format is not None and element is not UUID:
            self.emit_line(f"{self.write}(pack(f'>{{len({items})}}{element.format}', *{items}))")
            return
        item = self.make_name("i")
        with self.block(f"for {item} in {items}:"):
            self.value(element, nullable=False, expression=item)
            self.flush()

    def nested(self, cls: type, nullable: bool, expression: str) -> None:
        if not nullable:
            inner = self.make_name("m")
            self.emit_line(f"{inner} = {expression}")
            self.struct_(struct_spec(cls), inner)
            return
        self.flush()
        inner = self.make_name("m")
        self.emit_line(f"{inner} = {expression}")
        self.emit_line(f"if {inner} is None: {self.write}(b'\\xff')")
        with self.block("else:"):
            self.emit_line(f"{self.write}(b'\\x01')")
            self.struct_(struct_spec(cls), inner)
            self.flush()

    def struct_(self, struct_: StructSpec, value: str) -> None:
        name = struct_.cls.__name__
        for f in struct_.fields:
            self.guard(f, f"{name}.{f.name}", f"{value}.{f.name}")
        if not self.flexible:
            self.emit_line(f"if {value}.unknown_tags: raise no_field('{name}.unknown_tags', {self.version})")
        for f in self.list_fields(struct_, tagged=False):
            with self.compactness(f):
                self.value(f.wire.kind, self.version in f.wire.nullable, f"{value}.{f.name}")
        if self.flexible:
            self.tags(self.list_fields(struct_, tagged=True), value)

    def guard(self, f: FieldSpec, what: str, expression: str) -> None:
        """Emit checks against data loss: a value without a field, or a null without room, in this version."""
        if self.version not in f.wire.versions:
            if not f.wire.ignorable:
                default = self.constant(f.default, "default")
                self.emit_line(f"if {expression} != {default}: raise no_field({what!r}, {self.version})")
        elif f.may_be_null and self.version not in f.wire.nullable:
            self.emit_line(f"if {expression} is None: raise no_field('null in {what}', {self.version})")

    def tags(self, tagged: list[FieldSpec], value: str) -> None:
        defaults = {f.name: self.constant(f.default, "default") for f in tagged}
        changed = [f"{value}.{f.name} != {defaults[f.name]}" for f in tagged]
        with self.block(f"if {' or '.join([f'{value}.unknown_tags', *changed])}:"):
            if self.pending:
                self.emit_line(f"{self.write}({self.flush_expression()})")
            held, self.pending = self.pending, []
            collected = self.make_name("t")
            self.emit_line(f"{collected} = list({value}.unknown_tags)")
            for f in tagged:
                with self.block(f"if {value}.{f.name} != {defaults[f.name]}:"):
                    self.one_tag(f, f"{value}.{f.name}", collected)
            self.emit_line(f"write_tags({self.write}, {collected})")
            self.pending = held
        self.emit_line(f"else: {self.write}({self.flush_expression((('x', ''),))})")
        self.pending.clear()

    def one_tag(self, f: FieldSpec, expression: str, collected: str) -> None:
        """Emit a tagged field, encoded separately first because its size comes before it."""
        outer, parts = self.write, self.make_name("p")
        self.emit_line(f"{parts} = []")
        self.write = f"{parts}.append"
        self.value(f.wire.kind, self.version in f.wire.nullable, expression)
        self.flush()
        self.emit_line(f"{collected}.append(({f.wire.tag}, b''.join({parts})))")
        self.write = outer


# ------------------------------------------------------------------- what decoded values cost


class _SizeBounds:
    """Size bounds of one version's types: minimum on the wire, maximum in memory beyond 4x the wire size.

    The frame's own bytes pay for four bytes of memory each (one character above U+FFFF makes Python store
    every character of its string in four). `compute_charge` is what a decoded value may cost on top of that.
    """

    def __init__(self, version: int, flexible: bool) -> None:
        self.version, self.flexible = version, flexible

    def wire_min(self, kind: WireType) -> int:
        if isinstance(kind, ArrayType):
            return 1 if self.flexible else 4
        if not isinstance(kind, ScalarType):
            return sum(self._field_wire_min(f) for f in self._fields(kind)) + self.flexible
        if kind.format is not None:
            return _FIXED_BYTES[kind.format]
        return 1 if self.flexible else (2 if kind is STRING else 4)

    def _fields(self, cls: type) -> list[FieldSpec]:
        return [
            f
            for f in struct_spec(cls).fields
            if self.version in f.wire.versions and not f.is_tagged(self.version)
        ]

    def _field_wire_min(self, f: FieldSpec) -> int:
        return 1 if self._nullable_struct(f) else self.wire_min(f.wire.kind)

    def _nullable_struct(self, f: FieldSpec) -> bool:
        return not isinstance(f.wire.kind, (ScalarType, ArrayType)) and self.version in f.wire.nullable

    def memory(self, kind: WireType) -> int:
        """Return the most bytes one value takes, without its variable content and array elements."""
        if isinstance(kind, ArrayType):
            return 56
        if not isinstance(kind, ScalarType):
            own = 32 + 8 * (len(struct_spec(cls=kind).fields) + 1)
            return own + sum(self.memory(f.wire.kind) for f in self._fields(kind))
        return _SCALAR_MEMORY[kind.name]

    def compute_charge(self, kind: WireType) -> int:
        slots = 24  # in the over-allocated list it is collected in, and in the final tuple
        return max(ELEMENT_BYTES_MIN, self.memory(kind) + slots - 4 * self.wire_min(kind))


# Sizes of CPython objects of 64-bit builds, rounded up to the allocator's 16 bytes.
_SCALAR_MEMORY: Final = {
    "bool": 0,
    "int8": 32,
    "int16": 32,
    "uint16": 32,
    "int32": 32,
    "uint32": 32,
    "int64": 48,
    "float64": 32,
    "uuid": 128,
    "string": 80,
    "bytes": 48,
    "records": 208,
}


# ------------------------------------------------------------ what generated functions call


def _bad_length(what: str, length: int, left: int) -> DecodeError:
    return DecodeError(f"{what}: length {length}, with {left} bytes left in the frame")


def _bad_count(what: str, count: int, left: int) -> DecodeError:
    return DecodeError(f"{what}: {count} elements, with {left} bytes left in the frame and limits in memory")


def _bad_tag(what: str, off: int) -> DecodeError:
    return DecodeError(f"{what}: the tagged field's value ends {off:+d} bytes from where its size says")


def _no_field(what: str, version: int) -> UnsupportedField:
    return UnsupportedField(f"{what} cannot be said in version {version}")


def _long_string(stored: int) -> bytes:
    """Return the prefix of a compact string of 127 bytes or more, which int16 still limits (KIP-482)."""
    if stored > STRING_BYTES_MAX + 1:
        raise EncodeError(f"a string of {stored - 1} bytes, above {STRING_BYTES_MAX}")
    return encode_uvarint(stored)


def _write_tags(write: Callable[[bytes], None], tags: list[tuple[int, bytes]]) -> None:
    write(encode_uvarint(len(tags)))
    for tag, value in sorted(tags, key=lambda pair: pair[0]):
        write(encode_uvarint(tag) + encode_uvarint(len(value)))
        write(value)


_RUNTIME: Final[dict[str, Any]] = {
    "DecodeError": DecodeError,
    "EncodeError": EncodeError,
    "SHORT_UVARINTS": SHORT_UVARINTS,
    "StructError": struct.error,
    "bad_count": _bad_count,
    "bad_length": _bad_length,
    "bad_tag": _bad_tag,
    "encode_uvarint": encode_uvarint,
    "long_string": _long_string,
    "no_field": _no_field,
    "pack": struct.pack,
    "read_uvarint": read_uvarint,
    "unpack_from": struct.unpack_from,
    "uuid_from": make_uuid,
    "write_tags": _write_tags,
}
