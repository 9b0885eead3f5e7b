"""Hostile bytes for every decoder: mutations of valid messages, noise, frames that ask for much memory."""

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from crc32c import crc32c
from tests.support.wire_values import random_value

from tallystick.client.consumer.decode import CompletedFetch
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol import DecodeError, decode, encode, messages
from tallystick.protocol.compile import _SizeBounds
from tallystick.protocol.frames import Preallocation, ReceiveBuffer
from tallystick.protocol.records import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchMeta,
    Codec,
    Record,
    check_batch,
    decode_records,
    encode_batch,
)
from tallystick.protocol.records.batch import ATTRIBUTES_AT, CRC_AT
from tallystick.protocol.wire import ArrayType, ScalarType, get_message_spec, get_struct_spec, list_messages

# Numbers at some boundary: sizes, signs, nulls, the ends of varint lengths.
SPECIAL = (0, 1, 2, 0x7F, 0x80, 0xFF, 0xFE)
AT = TopicPartition("t", 0)
SPECIAL_INT32 = tuple(struct.pack(">i", n) for n in (-(2**31), -2, -1, 0, 1, 2**16, 2**24, 2**31 - 1))


@dataclass(frozen=True)
class Target:
    """One decoder, with valid inputs for it."""

    label: str
    decode: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


def message_classes() -> tuple[type, ...]:
    """Return every declared message, after importing the modules that declare them."""
    for module in walk_packages(messages.__path__, f"{messages.__name__}."):
        import_module(module.name)
    return list_messages()


def versions_of(cls: type) -> range:
    spec = get_message_spec(cls).versions
    assert spec.last is not None
    return range(spec.first, spec.last + 1)


def targets(rng: random.Random, seeds: int = 3) -> list[Target]:
    found = []
    for cls in message_classes():
        for version in versions_of(cls):
            valid = tuple(encode(random_value(cls, version, rng), version) for _ in range(seeds))
            label = f"{cls.__name__} v{version}"
            found.append(Target(label, lambda raw, c=cls, v=version: decode(c, raw, v), valid))
    found += record_targets()
    framed = tuple(struct.pack(">i", len(raw)) + raw for raw in found[0].seeds)
    found.append(Target("frames", split_frames, framed))
    return found


def split_frames(raw: bytes) -> None:
    """Take all complete frames out of a buffer that is smaller than many of them."""
    buffer = ReceiveBuffer(64, 1000, Preallocation(1))
    at = 0
    while at < len(raw):
        place = buffer.get_writable()
        piece = raw[at : at + len(place)]
        place[: len(piece)] = piece
        buffer.add(len(piece))
        at += len(piece)
        while buffer.take_frame() is not None:
            pass


def record_targets() -> Iterator[Target]:
    """Yield decoders of record batches: as they come, and with the CRC made right again after a mutation."""
    records = [Record(0, 1, b"k", b"v" * 90), Record(1, 5, None, None, (("h", b"x"), ("n", None)))]
    seeds = tuple(encode_batch(records, BatchMeta(codec=codec)) for codec in Codec)
    yield Target("batch", lambda raw: check_batch(memoryview(raw)), seeds)
    yield from [Target("records", lambda raw: decode_records(with_crc(raw)), seeds)] * 30
    yield from [Target("consumed", consumed, seeds)] * 30


def consumed(raw: bytes) -> None:
    """Read as the consumer does, as columns and as records; both must give the same number."""
    raw = with_crc(raw)
    table = CompletedFetch(AT, 0, raw, None).take_columns(1_000_000)
    records = CompletedFetch(AT, 0, raw, None).take_records(1_000_000)
    if table is not None and table[0] != len(records):
        raise AssertionError(f"{table[0]} rows, {len(records)} records")


def with_crc(raw: bytes) -> bytes:
    if len(raw) < HEADER_SIZE:
        return raw
    end = min(len(raw), LOG_OVERHEAD + max(0, int.from_bytes(raw[8:12], "big")))
    return raw[:CRC_AT] + struct.pack(">I", crc32c(raw[ATTRIBUTES_AT:end])) + raw[ATTRIBUTES_AT:]


def mutate(raw: bytes, rng: random.Random) -> bytes:
    """Return a variant of `raw_entry`: a few bytes set, cut off, removed or doubled; or noise instead."""
    if rng.random() < 0.05 or not raw:
        return rng.randbytes(rng.randrange(len(raw) + 40))
    changed = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(7):
            case 0 | 1:
                changed[at : at + 1] = bytes((rng.choice(SPECIAL),))
            case 2:
                changed[at : at + 1] = bytes((rng.randrange(256),))
            case 3:
                changed[at : at + 4] = rng.choice(SPECIAL_INT32)
            case 4:
                del changed[at:]
            case 5:
                del changed[at : at + rng.randrange(1, 9)]
            case _:
                changed[at:at] = changed[at : at + rng.randrange(1, 9)] or b"\xff\xff\xff\xff\x0f"
    return bytes(changed)


def attack(inputs: int, seed: int) -> dict[str, int]:
    """Send `inputs` hostile inputs [WIRE-1]; any exception but DecodeError propagates."""
    rng = random.Random(seed)
    aims = targets(rng)
    counts = {"inputs": 0, "values": 0, "refused": 0}
    for _ in range(inputs):
        aim = rng.choice(aims)
        raw = mutate(rng.choice(aim.seeds), rng)
        counts["inputs"] += 1
        try:
            aim.decode(raw)
            counts["values"] += 1
        except DecodeError:
            counts["refused"] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}, input {counts['inputs']}, {aim.label}: {raw.hex()}")
            raise
    return counts


# ------------------------------------------------------------------------- frames that ask for much


@dataclass(frozen=True)
class Bomb:
    """A way to make valid messages that are one large array of the smallest elements there are."""

    cls: type
    version: int
    path: tuple[str, ...]
    element: object
    price: int  # the decoder's price of one element, beyond four times its bytes

    def frame(self, elements: int) -> bytes:
        empty = smallest(self.cls, self.version)
        full = with_array(empty, self.version, self.path, (self.element,) * elements)
        return encode(full, self.version)

    def __str__(self) -> str:
        return f"{self.cls.__name__} v{self.version} {'.'.join(self.path)}"


def bombs(cls: type, version: int) -> Iterator[Bomb]:
    cost = _SizeBounds(version, version in get_message_spec(cls).flexible)
    for path, kind in arrays(cls, version):
        yield Bomb(cls, version, path, smallest_of(kind, version), cost.compute_charge(kind))


def arrays(cls: type, version: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path to every array, and the type of its elements."""
    for f in get_struct_spec(cls).fields:
        kind = f.wire.kind
        if version not in f.wire.versions or isinstance(kind, ScalarType):
            continue
        inner = kind.element if isinstance(kind, ArrayType) else kind
        if isinstance(kind, ArrayType):
            yield (f.name,), inner
        if not isinstance(inner, ScalarType):
            for path, element in arrays(inner, version):
                yield (f.name, *path), element


def with_array(value: Any, version: int, path: tuple[str, ...], items: tuple[object, ...]) -> Any:
    """Return `value` with `items` at `path`; arrays on the way there get one element."""
    name, *rest = path
    if not rest:
        return replace(value, **{name: items})
    f = next(f for f in get_struct_spec(type(value)).fields if f.name == name)
    if isinstance(f.wire.kind, ArrayType):
        inner = with_array(smallest_of(f.wire.kind.element, version), version, tuple(rest), items)
        return replace(value, **{name: (inner,)})
    inner = with_array(smallest_of(f.wire.kind, version), version, tuple(rest), items)
    return replace(value, **{name: inner})


def smallest(cls: type, version: int) -> Any:
    chosen = {}
    for f in get_struct_spec(cls).fields:
        absent = version not in f.wire.versions or f.is_tagged(version)
        null = version in f.wire.nullable
        chosen[f.name] = f.default if absent else None if null else smallest_of(f.wire.kind, version)
    return cls(**chosen)


def smallest_of(kind: Any, version: int) -> Any:
    if isinstance(kind, ArrayType):
        return ()
    if not isinstance(kind, ScalarType):
        return smallest(kind, version)
    # A large number is a Python object of its own, where 0 is shared: the same bytes, more memory.
    if kind.zero == 0 and kind.format in ("i", "q"):
        return 2**30 if kind.format == "i" else 2**62
    return b"" if kind.zero is None else kind.zero
