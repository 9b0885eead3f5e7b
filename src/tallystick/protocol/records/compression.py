"""The four compression codecs of record batches, in the framings of Kafka's Java client.

Decompression is bounded: output is produced in pieces, and stops one piece after the limit [REC-4]. Input
is also passed in pieces, so that many tiny frames cost linear time.

Source: KIP-57 (lz4 framing), KIP-110 (zstd), KIP-390 (levels); snappy-java's SnappyInputStream for xerial.
"""

import zlib
from collections.abc import Callable
from enum import IntEnum
from io import SEEK_CUR, BytesIO
from struct import Struct
from typing import Final

import cramjam
import lz4.frame
import zstandard

from tallystick.kernel.limits import (
    DECOMPRESSED_BYTES_FLOOR,
    DECOMPRESSED_BYTES_MAX,
    DECOMPRESSION_RATIO_MAX,
    KIB,
    MIB,
)
from tallystick.protocol.records.errors import InvalidBatch


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


INPUT_PIECE: Final = 256 * KIB
OUTPUT_PIECE: Final = MIB
GZIP_MEMBERS_MAX: Final = 1_000

_GZIP_WINDOW: Final = 31  # 15 bits of window, with gzip's header and trailer
_GZIP_MAGIC: Final = b"\x1f\x8b"

# Stream header, version and oldest compatible version, then blocks of int32 length and raw snappy.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK: Final = 32 * KIB
_INT32: Final = Struct(">i")
# The best ratio of a raw block: a copy of 64 bytes takes 3. A header that announces more is invalid.
_SNAPPY_RATIO_MAX: Final = 22

_LZ4_FAST: Final = 9  # Kafka's default level; its Java codec uses fast, not high, compression for it
_LZ4_HIGH_MIN: Final = 3
# The default maximum of zstd decoders; a Java producer at level 22 uses it.
_ZSTD_WINDOW_MAX: Final = 128 * MIB


class _DecompressedOutput:
    """Decompressed bytes and their limit. BytesIO hands its buffer over without a copy."""

    __slots__ = ("buffer", "bytes_max", "size")

    def __init__(self, bound: int) -> None:
        self.buffer, self.size, self.bytes_max = BytesIO(), 0, bound

    def next_piece_size(self) -> int:
        """Return the size of the next piece; one byte past the limit shows that it is exceeded."""
        return min(OUTPUT_PIECE, self.bytes_max - self.size + 1)

    def add(self, piece: bytes) -> None:
        self.reserve(len(piece))
        self.buffer.write(piece)

    def reserve(self, size: int) -> None:
        """Count `size` more bytes; raise before they are produced if their number is known and too large."""
        self.size += size
        if self.size > self.bytes_max:
            raise InvalidBatch(f"records unpack to {self.size} bytes or more, the bound is {self.bytes_max}")


def compress(codec: Codec, data: bytes, level: int | None = None) -> bytes:
    """Compress a record section; `level` as Kafka's compression.<codec>.level, None for its default.

    Kafka's Java client refuses lz4 frames with linked blocks, so ours are independent [REC-5].
    """
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return zlib.compress(data, -1 if level is None else level, _GZIP_WINDOW)
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            fast = level is None or level == _LZ4_FAST
            packed: bytes = lz4.frame.compress(
                data,
                compression_level=0 if fast or level is None else max(level, _LZ4_HIGH_MIN),
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                store_size=False,
            )
            return packed
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def decompress(
    codec: Codec,
    data: bytes | memoryview,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
    max_ratio: int = DECOMPRESSION_RATIO_MAX,
) -> bytes:
    """Decompress a record section.

    Accepts what Kafka's Java client accepts, and also lz4 frames with linked blocks. Bytes after the last
    frame are ignored, as in Java; a truncated zstd stream shows as missing records.

    Args:
        max_bytes: limit of the result.
        max_ratio: limit of result / input, once the result is above DECOMPRESSED_BYTES_FLOOR.
    Raises: InvalidBatch.
    Cost: memory for at most the limit and two pieces.
    """
    if codec is Codec.NONE:
        return bytes(data)
    output = _DecompressedOutput(min(max_bytes, max(DECOMPRESSED_BYTES_FLOOR, max_ratio * len(data))))
    try:
        _DECOMPRESSORS[codec](memoryview(data), output)
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError, MemoryError) as exc:
        # lz4 raises RuntimeError for a bad frame, MemoryError for one that is too large.
        raise InvalidBatch(f"{codec.name.lower()} cannot unpack the records: {exc}") from exc
    return output.buffer.getvalue()


def _decompress_gzip(source: memoryview, output: _DecompressedOutput) -> None:
    at = 0
    for _ in range(GZIP_MEMBERS_MAX):
        member, rest = zlib.decompressobj(_GZIP_WINDOW), b""
        while not member.eof:
            part: bytes | memoryview = rest
            if not rest:
                part = source[at : at + INPUT_PIECE]
                at += len(part)
            piece = member.decompress(part, output.next_piece_size())
            if not piece and not part:
                raise InvalidBatch(f"gzip ends inside a member, after {at} bytes")
            output.add(piece)
            rest = member.unconsumed_tail
        at -= len(member.unused_data)
        if bytes(source[at : at + len(_GZIP_MAGIC)]) != _GZIP_MAGIC:
            return
    raise InvalidBatch(f"more than {GZIP_MEMBERS_MAX} gzip members")


def _compress_xerial(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(source: memoryview, output: _DecompressedOutput) -> None:
    if bytes(source[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(source, output)  # some clients omit the framing
    at = 0
    while at < len(source):
        if bytes(source[at : at + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            at += len(_XERIAL_HEADER)  # streams may be concatenated
            continue
        size = int.from_bytes(source[at : at + _INT32.size], "big")
        at += _INT32.size
        if not 0 < size <= len(source) - at:
            raise InvalidBatch(f"snappy block declares {size} bytes, only {max(0, len(source) - at)} remain")
        _decompress_snappy_block(source[at : at + size], output)
        at += size
    return None


def _decompress_snappy_block(block: memoryview, output: _DecompressedOutput) -> None:
    size: int = cramjam.snappy.decompress_raw_len(block)
    if size > _SNAPPY_RATIO_MAX * len(block):
        raise InvalidBatch(f"snappy block of {len(block)} bytes claims to unpack to {size}")
    output.reserve(size)
    if not size:
        return
    start = output.buffer.tell()
    output.buffer.seek(size - 1, SEEK_CUR)
    output.buffer.write(b"\0")
    with output.buffer.getbuffer() as whole, whole[start:] as room:
        cramjam.snappy.decompress_raw_into(block, room)


def _decompress_lz4(source: memoryview, output: _DecompressedOutput) -> None:
    frame, at = lz4.frame.LZ4FrameDecompressor(), 0
    while not frame.eof:
        part = source[at : at + INPUT_PIECE] if frame.needs_input else b""
        at += len(part)
        piece = frame.decompress(part, max_length=output.next_piece_size())
        if not piece and not part and not frame.eof:
            raise InvalidBatch(f"lz4 ends inside its frame, after {at} bytes")
        output.add(piece)


def _decompress_zstd(source: memoryview, output: _DecompressedOutput) -> None:
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    with unpacker.stream_reader(source, read_across_frames=True) as stream:
        while piece := stream.read(output.next_piece_size()):
            output.add(piece)


_DECOMPRESSORS: Final[dict[Codec, Callable[[memoryview, _DecompressedOutput], None]]] = {
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
