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
    get_message_spec,
    get_struct_spec,
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
    encoder: Encoder = _compile_cached(_ENCODERS, cls, version, _EncodeSource)
    return encoder


def get_decoder(cls: type, version: int) -> Decoder:
    """Return the compiled function `(view, at) -> (value, next)` for one class and version."""
    decoder: Decoder = _compile_cached(_DECODERS, cls, version, _DecodeSource)
    return decoder


_ENCODERS: Final[dict[tuple[type, int], Encoder]] = {}
_DECODERS: Final[dict[tuple[type, int], Decoder]] = {}


def _compile_cached(
    cache: dict[tuple[type, int], Any], cls: type, version: int, kind: type["_CodecSource"]
) -> Any:
    cached = cache.get((cls, version))
    if cached is None:
        spec = get_message_spec(cls)
        if version not in spec.versions:
            supported = f"{spec.versions.first}-{spec.versions.last}"
            raise UnsupportedVersion(
                f"{cls.__name__} version {version} is not supported; supported are {supported}"
            )
        cached = cache[cls, version] = kind(spec, version).compile_function()
    return cached


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
    def emit_block(self, head: str) -> Iterator[None]:
        self.emit_line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def make_name(self, stem: str) -> str:
        """Return an unused variable name, because nested structs are inlined into one function."""
        self.serial += 1
        return f"{stem}{self.serial}"

    def add_constant(self, value: object, stem: str = "k") -> str:
        name = self.make_name(stem)
        self.names[name] = value
        return name

    def add_packer(self, letters: str, method: str) -> str:
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
    def set_compactness(self, f: FieldSpec) -> Iterator[None]:
        """Keep the client id of a request header in its non-compact form, readable by the oldest broker."""
        flexible, self.flexible = self.flexible, self.flexible and f.wire.compact
        yield
        self.flexible = flexible

    def build_text(self) -> str:
        raise NotImplementedError

    def compile_function(self) -> Any:
        text = self.build_text()
        where = f"<{self.name} {self.spec.struct.cls.__name__} v{self.version}>"
        exec(compile(text, where, "exec"), self.names)
        return self.names[self.name]


# ---------------------------------------------------------------------------------- decoding


class _DecodeSource(_CodecSource):
    """Generates `decode(buf, at, room)`; `at` moves over `buf` up to `end`; `room` is the memory budget."""

    name = "decode"

    def build_text(self) -> str:
        self.lines.clear()
        self.emit_line("end = len(buf)")
        value = self.emit_struct(self.spec.struct)
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
            self.emit_line(f"{', '.join(targets)}, = {self.add_packer(letters, 'unpack_from')}(buf, at)")
        self.emit_line(f"at += {size}")
        for letter, target in self.pending:
            if letter == "16s":
                self.emit_line(f"{target} = uuid_from({target})")
        self.pending.clear()

    def emit_length(self, path: str, classic: ScalarType) -> str:
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

    def emit_value(self, kind: WireType, nullable: bool, path: str) -> str:
        """Emit the read of one value; return its variable, valid after the next flush."""
        target = self.make_name("v")
        if isinstance(kind, ArrayType):
            self.emit_array(kind, nullable, path, target)
        elif not isinstance(kind, ScalarType):
            self.emit_nested(kind, nullable, target)
        elif kind.format is not None:
            self.pending.append((kind.format, target))
        else:
            self.emit_sized(kind, nullable, path, target)
        return target

    def emit_sized(self, kind: ScalarType, nullable: bool, path: str, target: str) -> None:
        n = self.emit_length(path, INT16 if kind is STRING else INT32)
        stop = self.make_name("e")
        take = {STRING: f"str(buf[at:{stop}], 'utf-8')", BYTES: f"bytes(buf[at:{stop}])"}
        with self.emit_null_or(nullable, n, target):
            self.emit_line(f"{stop} = at + {n}")
            too_long = f" or {n} > {STRING_BYTES_MAX}" if kind is STRING and self.flexible else ""
            negative = "" if nullable else f"{n} < 0 or "
            self.emit_line(
                f"if {negative}{stop} > end{too_long}: raise make_length_error({path!r}, {n}, end - at)"
            )
            self.emit_line(f"{target} = {take.get(kind, f'buf[at:{stop}]')}")
            self.emit_line(f"at = {stop}")

    @contextmanager
    def emit_null_or(self, nullable: bool, n: str, target: str) -> Iterator[None]:
        if not nullable:
            yield
            return
        self.emit_line(f"if {n} < 0: {target} = None")
        with self.emit_block("else:"):
            yield

    def emit_array(self, kind: ArrayType, nullable: bool, path: str, target: str) -> None:
        n = self.emit_length(path, INT32)
        cost = _SizeBounds(self.version, self.flexible)
        wire_min, price = max(1, cost.compute_wire_min(kind.element)), cost.compute_charge(kind.element)
        with self.emit_null_or(nullable, n, target):
            self.emit_line(f"room -= {n} * {price}")
            negative = "" if nullable else f"{n} < 0 or "
            bound = f"(end - at) // {wire_min}" if wire_min > 1 else "end - at"
            self.emit_line(
                f"if {negative}{n} > {bound} or {n} > {ARRAY_ELEMENTS_MAX} or room < 0: raise"
                f" make_count_error({path!r}, {n}, end - at)"
            )
            element = kind.element
            if isinstance(element, ScalarType) and element.format is not None and element is not UUID:
                self.emit_line(f"{target} = unpack_from(f'>{{{n}}}{element.format}', buf, at)")
                self.emit_line(f"at += {n} * {_FIXED_BYTES[element.format]}")
                return
            self.emit_line(f"{target} = []")
            with self.emit_block(f"for _ in range({n}):"):
                item = self.emit_value(element, nullable=False, path=f"{path}[]")
                self.flush()
                self.emit_line(f"{target}.append({item})")
            self.emit_line(f"{target} = tuple({target})")

    def emit_nested(self, cls: type, nullable: bool, target: str) -> None:
        if not nullable:
            self.emit_line(f"{target} = {self.emit_struct(get_struct_spec(cls))}")
            return
        there = self.make_name("n")
        self.pending.append(("b", there))
        self.flush()
        with self.emit_null_or(True, there, target):
            self.emit_line(f"{target} = {self.emit_struct(get_struct_spec(cls))}")

    def emit_struct(self, struct_: StructSpec) -> str:
        """Emit the read of a struct with its tagged fields; return its variable."""
        values: dict[str, str] = {}
        for f in self.list_fields(struct_, tagged=False):
            path = f"{struct_.cls.__name__}.{f.name}"
            with self.set_compactness(f):
                values[f.name] = self.emit_value(f.wire.kind, self.version in f.wire.nullable, path)
        tagged = self.list_fields(struct_, tagged=True)
        for f in tagged:
            values[f.name] = self.make_name("v")
        if self.flexible:
            values["unknown_tags"] = self.emit_tags(struct_, tagged, values)
        self.flush()
        # What this version lacks has its default from the class, unless the constructor requires it.
        absent = {f.name: self.add_constant(f.default, "zero") for f in struct_.fields if f.required}
        arguments = ", ".join(f"{name}={variable}" for name, variable in (absent | values).items())
        struct_value = self.make_name("s")
        self.emit_line(f"{struct_value} = {self.add_constant(struct_.cls, 'cls')}({arguments})")
        return struct_value

    def emit_tags(self, struct_: StructSpec, tagged: list[FieldSpec], values: dict[str, str]) -> str:
        count, unknown, tag, stop = (self.make_name(stem) for stem in ("n", "u", "t", "e"))
        self.pending.append(("B", count))
        self.flush()
        for f in tagged:
            self.emit_line(f"{values[f.name]} = {self.add_constant(f.default, 'default')}")
        self.emit_line(f"{unknown} = ()")
        with self.emit_block(f"if {count}:"):
            self.emit_line(f"if {count} > 127: {count}, at = read_uvarint(buf, at - 1)")
            self.emit_line(
                f"if {count} > {TAGGED_FIELDS_MAX}:"
                f" raise make_count_error('tagged fields', {count}, end - at)"
            )
            self.emit_line(f"{unknown} = []")
            with self.emit_block(f"for _ in range({count}):"):
                self.emit_line(f"{tag}, at = read_uvarint(buf, at)")
                self.emit_line(f"{stop}, at = read_uvarint(buf, at)")
                self.emit_line(f"{stop} += at")
                self.emit_line(
                    f"if {stop} > end: raise make_length_error('tagged field', {stop} - at, end - at)"
                )
                self.emit_tag(struct_, tagged, values, (tag, stop, unknown))
            self.emit_line(f"{unknown} = tuple({unknown})")
        return unknown

    def emit_tag(
        self,
        struct_: StructSpec,
        tagged: list[FieldSpec],
        values: dict[str, str],
        names: tuple[str, str, str],
    ) -> None:
        tag, stop, unknown = names
        cost = _SizeBounds(self.version, self.flexible)
        for position, f in enumerate(tagged):
            with self.emit_block(f"{'elif' if position else 'if'} {tag} == {f.wire.tag}:"):
                self.emit_line(f"room -= {cost.compute_charge(f.wire.kind)}")
                path = f"{struct_.cls.__name__}.{f.name}"
                value = self.emit_value(f.wire.kind, self.version in f.wire.nullable, path)
                self.flush()
                self.emit_line(f"{values[f.name]} = {value}")
                self.emit_line(f"if at != {stop}: raise make_tag_error({path!r}, at - {stop})")
        with self.emit_block("else:" if tagged else "if True:"):
            self.emit_line(f"room -= {_UNKNOWN_TAG_BYTES}")
            self.emit_line(f"if room < 0: raise make_count_error('tagged fields', {tag}, end - at)")
            self.emit_line(f"{unknown}.append(({tag}, bytes(buf[at:{stop}])))")
            self.emit_line(f"at = {stop}")


# ---------------------------------------------------------------------------------- encoding


class _EncodeSource(_CodecSource):
    """Generates `encode(m)`, which returns a list of buffers that form the message."""

    name = "encode"

    def __init__(self, spec: MessageSpec, version: int) -> None:
        super().__init__(spec, version)
        self.write = "w"  # the append method of the list being filled

    def build_text(self) -> str:
        self.lines.clear()
        self.emit_line("out = []")
        self.emit_line("w = out.append")
        self.emit_struct(self.spec.struct, "m")
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

    def build_flush(self, extra: tuple[tuple[str, str], ...] = ()) -> str:
        """Return the expression that packs the pending fields and `extra`."""
        fields = [*self.pending, *extra]
        letters = "".join(letter for letter, _ in fields)
        return f"{self.add_packer(letters, 'pack')}({', '.join(e for letter, e in fields if letter != 'x')})"

    def flush(self) -> None:
        if self.pending:
            self.emit_line(f"{self.write}({self.build_flush()})")
        self.pending.clear()

    def emit_length(self, n: str, classic: ScalarType, wide: str) -> None:
        """Emit the write of a length or count `n` (-1 for null); `wide` writes one that needs two bytes."""
        if not self.flexible:
            self.pending.append((classic.format or "", n))
            self.flush()
            return
        self.emit_line(f"{n} += 1")
        short = self.build_flush((("B", n),)) if self.pending else f"SHORT_UVARINTS[{n}]"
        self.emit_line(f"if {n} < 128: {self.write}({short})")
        with self.emit_block("else:"):
            if self.pending:
                self.emit_line(f"{self.write}({self.build_flush()})")
            self.emit_line(f"{self.write}({wide}({n}))")
        self.pending.clear()

    # ---- values

    def emit_value(self, kind: WireType, nullable: bool, expression: str) -> None:
        if isinstance(kind, ArrayType):
            self.emit_array(kind, nullable, expression)
        elif not isinstance(kind, ScalarType):
            self.emit_nested(kind, nullable, expression)
        elif kind.format is not None:
            self.pending.append((kind.format, f"{expression}.bytes" if kind is UUID else expression))
        else:
            self.emit_sized(kind, nullable, expression)

    def emit_sized(self, kind: ScalarType, nullable: bool, expression: str) -> None:
        raw, n = self.make_name("r"), self.make_name("n")
        convert = f"{expression}.encode()" if kind is STRING else expression
        if nullable:
            self.emit_line(f"{raw} = {expression}")
            self.emit_line(f"if {raw} is None: {raw} = b''; {n} = -1")
            with self.emit_block("else:"):
                if kind is STRING:
                    self.emit_line(f"{raw} = {raw}.encode()")
                self.emit_line(f"{n} = len({raw})")
        else:
            self.emit_line(f"{raw} = {convert}")
            self.emit_line(f"{n} = len({raw})")
        self.emit_length(
            n,
            INT16 if kind is STRING else INT32,
            "encode_long_length" if kind is STRING else "encode_uvarint",
        )
        self.emit_line(f"{self.write}({raw})")

    def emit_array(self, kind: ArrayType, nullable: bool, expression: str) -> None:
        items, n = self.make_name("a"), self.make_name("n")
        self.emit_line(f"{items} = {expression}")
        if nullable:
            self.emit_line(f"if {items} is None: {items} = (); {n} = -1")
            self.emit_line(f"else: {n} = len({items})")
        else:
            self.emit_line(f"{n} = len({items})")
        self.emit_length(n, INT32, "encode_uvarint")
        element = kind.element
        if isinstance(element, ScalarType) and element.format is not None and element is not UUID:
            self.emit_line(f"{self.write}(pack(f'>{{len({items})}}{element.format}', *{items}))")
            return
        item = self.make_name("i")
        with self.emit_block(f"for {item} in {items}:"):
            self.emit_value(element, nullable=False, expression=item)
            self.flush()

    def emit_nested(self, cls: type, nullable: bool, expression: str) -> None:
        if not nullable:
            inner = self.make_name("m")
            self.emit_line(f"{inner} = {expression}")
            self.emit_struct(get_struct_spec(cls), inner)
            return
        self.flush()
        inner = self.make_name("m")
        self.emit_line(f"{inner} = {expression}")
        self.emit_line(f"if {inner} is None: {self.write}(b'\\xff')")
        with self.emit_block("else:"):
            self.emit_line(f"{self.write}(b'\\x01')")
            self.emit_struct(get_struct_spec(cls), inner)
            self.flush()

    def emit_struct(self, struct_: StructSpec, value: str) -> None:
        name = struct_.cls.__name__
        for f in struct_.fields:
            self.emit_guard(f, f"{name}.{f.name}", f"{value}.{f.name}")
        if not self.flexible:
            self.emit_line(
                f"if {value}.unknown_tags: raise make_field_error('{name}.unknown_tags', {self.version})"
            )
        for f in self.list_fields(struct_, tagged=False):
            with self.set_compactness(f):
                self.emit_value(f.wire.kind, self.version in f.wire.nullable, f"{value}.{f.name}")
        if self.flexible:
            self.emit_tags(self.list_fields(struct_, tagged=True), value)

    def emit_guard(self, f: FieldSpec, path: str, expression: str) -> None:
        """Emit checks against data loss: a value without a field, or a null without room, in this version."""
        if self.version not in f.wire.versions:
            if not f.wire.ignorable:
                default = self.add_constant(f.default, "default")
                self.emit_line(
                    f"if {expression} != {default}: raise make_field_error({path!r}, {self.version})"
                )
        elif f.may_be_null and self.version not in f.wire.nullable:
            self.emit_line(
                f"if {expression} is None: raise make_field_error('null in {path}', {self.version})"
            )

    def emit_tags(self, tagged: list[FieldSpec], value: str) -> None:
        defaults = {f.name: self.add_constant(f.default, "default") for f in tagged}
        differences = [f"{value}.{f.name} != {defaults[f.name]}" for f in tagged]
        with self.emit_block(f"if {' or '.join([f'{value}.unknown_tags', *differences])}:"):
            if self.pending:
                self.emit_line(f"{self.write}({self.build_flush()})")
            pending, self.pending = self.pending, []
            tags = self.make_name("t")
            self.emit_line(f"{tags} = list({value}.unknown_tags)")
            for f in tagged:
                with self.emit_block(f"if {value}.{f.name} != {defaults[f.name]}:"):
                    self.emit_tag(f, f"{value}.{f.name}", tags)
            self.emit_line(f"write_tags({self.write}, {tags})")
            self.pending = pending
        self.emit_line(f"else: {self.write}({self.build_flush((('x', ''),))})")
        self.pending.clear()

    def emit_tag(self, f: FieldSpec, expression: str, tags: str) -> None:
        """Emit a tagged field, encoded separately first because its size comes before it."""
        outer, parts = self.write, self.make_name("p")
        self.emit_line(f"{parts} = []")
        self.write = f"{parts}.append"
        self.emit_value(f.wire.kind, self.version in f.wire.nullable, expression)
        self.flush()
        self.emit_line(f"{tags}.append(({f.wire.tag}, b''.join({parts})))")
        self.write = outer


# ------------------------------------------------------------------- what decoded values cost


class _SizeBounds:
    """Size bounds of one version's types: minimum on the wire, maximum in memory beyond 4x the wire size.

    The frame's own bytes pay for four bytes of memory each (one character above U+FFFF makes Python store
    every character of its string in four). `compute_charge` is what a decoded value may cost on top of that.
    """

    def __init__(self, version: int, flexible: bool) -> None:
        self.version, self.flexible = version, flexible

    def compute_wire_min(self, kind: WireType) -> int:
        if isinstance(kind, ArrayType):
            return 1 if self.flexible else 4
        if not isinstance(kind, ScalarType):
            return sum(self._compute_field_wire_min(f) for f in self._list_fields(kind)) + self.flexible
        if kind.format is not None:
            return _FIXED_BYTES[kind.format]
        return 1 if self.flexible else (2 if kind is STRING else 4)

    def _list_fields(self, cls: type) -> list[FieldSpec]:
        return [
            f
            for f in get_struct_spec(cls).fields
            if self.version in f.wire.versions and not f.is_tagged(self.version)
        ]

    def _compute_field_wire_min(self, f: FieldSpec) -> int:
        return 1 if self._is_nullable_struct(f) else self.compute_wire_min(f.wire.kind)

    def _is_nullable_struct(self, f: FieldSpec) -> bool:
        return not isinstance(f.wire.kind, (ScalarType, ArrayType)) and self.version in f.wire.nullable

    def compute_memory(self, kind: WireType) -> int:
        """Return the most bytes one value takes, without its variable content and array elements."""
        if isinstance(kind, ArrayType):
            return 56
        if not isinstance(kind, ScalarType):
            own = 32 + 8 * (len(get_struct_spec(cls=kind).fields) + 1)
            return own + sum(self.compute_memory(f.wire.kind) for f in self._list_fields(kind))
        return _SCALAR_MEMORY[kind.name]

    def compute_charge(self, kind: WireType) -> int:
        slots = 24  # in the over-allocated list it is collected in, and in the final tuple
        return max(ELEMENT_BYTES_MIN, self.compute_memory(kind) + slots - 4 * self.compute_wire_min(kind))


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


def _make_length_error(path: str, length: int, available: int) -> DecodeError:
    return DecodeError(f"{path}: length is {length}, but the frame has {available} bytes left")


def _make_count_error(path: str, count: int, available: int) -> DecodeError:
    return DecodeError(
        f"{path}: {count} elements do not fit into the {available} bytes left in the frame, or into the"
        " memory that a request may use"
    )


def _make_tag_error(path: str, off: int) -> DecodeError:
    return DecodeError(
        f"{path}: the tagged field's value ends {off:+d} bytes away from the end that its size gives"
    )


def _make_field_error(path: str, version: int) -> UnsupportedField:
    return UnsupportedField(f"{path} cannot be encoded in version {version}")


def _encode_long_length(length_plus_one: int) -> bytes:
    """Return the prefix of a compact string of 127 bytes or more, which int16 still limits (KIP-482)."""
    if length_plus_one > STRING_BYTES_MAX + 1:
        raise EncodeError(f"a string has {length_plus_one - 1} bytes; at most {STRING_BYTES_MAX} are allowed")
    return encode_uvarint(length_plus_one)


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
    "make_count_error": _make_count_error,
    "make_length_error": _make_length_error,
    "make_tag_error": _make_tag_error,
    "encode_uvarint": encode_uvarint,
    "encode_long_length": _encode_long_length,
    "make_field_error": _make_field_error,
    "pack": struct.pack,
    "read_uvarint": read_uvarint,
    "unpack_from": struct.unpack_from,
    "uuid_from": make_uuid,
    "write_tags": _write_tags,
}
