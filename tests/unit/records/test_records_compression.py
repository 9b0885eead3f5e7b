"""Codecs: the framings others use, and what a hostile payload may cost."""

import random
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import cramjam
import lz4.frame
import pytest
import zstandard

from tallystick.kernel.limits import DECOMPRESSED_BYTES_FLOOR, DECOMPRESSED_BYTES_MAX, MIB
from tallystick.protocol.records import (
    BatchMeta,
    Codec,
    CorruptBatch,
    DecodeLimits,
    InvalidBatch,
    Record,
    check_batch,
    compress,
    compression,
    decode_records,
    decompress,
    encode_batch,
    scan_keys,
)
from tallystick.protocol.records.batch import BatchHeader
from tallystick.protocol.records.compression import GZIP_MEMBERS_MAX, OUTPUT_PIECE
from tallystick.protocol.records.section import build_batch

PACKED = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"".join(b"%d some text that repeats," % (i * 7919 % 1000) for i in range(4000))
XERIAL = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def xerial_block(data: bytes) -> bytes:
    block = raw_snappy(data)
    return len(block).to_bytes(4, "big") + block


@contextmanager
def peak_below(limit_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit_bytes, f"{peak / MIB:.1f} MiB of {limit_bytes / MIB:.1f}"


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [0, 1, 61, 32 * 1024, 32 * 1024 + 1, len(TEXT)])
def test_round_trip(codec: Codec, size: int) -> None:
    packed = compress(codec, TEXT[:size])
    assert decompress(codec, packed) == TEXT[:size]
    assert decompress(codec, memoryview(bytearray(packed))) == TEXT[:size]


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Codec.GZIP, (1, 9)), (Codec.LZ4, (1, 9, 17)), (Codec.ZSTD, (-7, 1, 22))],
    ids=["gzip", "lz4", "zstd"],
)
def test_every_level_kafka_allows(codec: Codec, levels: tuple[int, ...]) -> None:
    for level in levels:
        assert decompress(codec, compress(codec, TEXT, level)) == TEXT


def test_our_lz4_blocks_stand_alone() -> None:
    """[REC-5] Lz4BlockInputStream refuses a frame whose flags say otherwise."""
    frame = compress(Codec.LZ4, TEXT)
    flags = frame[4]
    assert flags >> 6 == 1, "version"
    assert flags & 0b0010_0000, "independent blocks"
    assert frame[5] >> 4 == 4, "blocks of 64 KiB"


def test_our_snappy_is_framed_in_blocks_of_32_kib() -> None:
    framed = compress(Codec.SNAPPY, TEXT)
    assert framed.startswith(XERIAL)
    assert framed[16:].startswith(xerial_block(TEXT[: 32 * 1024]))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: (Codec.SNAPPY, raw_snappy(TEXT)), id="snappy, no framing"),
        pytest.param(lambda: (Codec.SNAPPY, XERIAL + xerial_block(TEXT)), id="snappy, one large block"),
        pytest.param(
            lambda: (Codec.SNAPPY, XERIAL + xerial_block(TEXT[:9]) + XERIAL + xerial_block(TEXT[9:])),
            id="snappy, one stream after another",
        ),
        pytest.param(lambda: (Codec.LZ4, lz4.frame.compress(TEXT, block_linked=True)), id="lz4, linked"),
        pytest.param(
            lambda: (Codec.LZ4, lz4.frame.compress(TEXT, block_size=7, block_linked=False, store_size=True)),
            id="lz4, blocks of 4 MiB and a size",
        ),
        pytest.param(
            lambda: (
                Codec.LZ4,
                lz4.frame.compress(TEXT, content_checksum=True, block_checksum=True, block_linked=False),
            ),
            id="lz4, checksums",
        ),
        pytest.param(lambda: (Codec.LZ4, compress(Codec.LZ4, TEXT) + b"left over"), id="lz4, bytes behind"),
        pytest.param(
            lambda: (Codec.GZIP, compress(Codec.GZIP, TEXT[:9]) + compress(Codec.GZIP, TEXT[9:]) + b"left"),
            id="gzip, two members and bytes behind",
        ),
        pytest.param(lambda: (Codec.ZSTD, streamed_zstd(TEXT)), id="zstd, size unknown"),
        pytest.param(
            lambda: (Codec.ZSTD, streamed_zstd(TEXT, window_log=27)), id="zstd, a window as of level 22"
        ),
        pytest.param(
            lambda: (Codec.ZSTD, compress(Codec.ZSTD, TEXT[:9]) + compress(Codec.ZSTD, TEXT[9:])),
            id="zstd, two frames",
        ),
    ],
)
def test_what_other_clients_write(make: Callable[[], tuple[Codec, bytes]]) -> None:
    codec, packed = make()
    assert decompress(codec, packed) == TEXT


def streamed_zstd(data: bytes, window_log: int = 21) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, write_checksum=True, hash_log=16)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(data) + stream.flush()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_a_cut_stream_is_noticed(codec: Codec) -> None:
    packed = compress(codec, TEXT[:500])
    for size in range(len(packed)):
        with pytest.raises(InvalidBatch):
            decompress(codec, packed[:size])


@pytest.mark.parametrize("codec", PACKED)
def test_a_cut_batch_is_noticed_under_every_codec(codec: Codec) -> None:
    """zstd's reader ends quietly where its input does; the record count does not."""
    batch = encode_batch([Record(i, 5, b"k%d" % i, TEXT[:100]) for i in range(50)], BatchMeta(codec=codec))
    header = check_batch(batch)
    for cut in range(9, len(batch) - 61, 5):
        with pytest.raises((InvalidBatch, CorruptBatch)):
            decode_records(build_batch(header, batch[61:-cut]))


@cache
def zeros_gzip() -> bytes:
    return zlib.compress(bytes(200 * MIB), 9, 31)


@cache
def zeros_lz4() -> bytes:
    frame = lz4.frame.LZ4FrameCompressor()
    return b"".join([frame.begin(), *(frame.compress(bytes(MIB)) for _ in range(200)), frame.flush()])


@cache
def zeros_snappy() -> bytes:
    return XERIAL + xerial_block(bytes(MIB)) * 200


@cache
def zeros_zstd() -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    return b"".join([*(stream.compress(bytes(MIB)) for _ in range(200)), stream.flush()])


BOMBS = [
    pytest.param(Codec.GZIP, zeros_gzip, id="gzip"),
    pytest.param(Codec.LZ4, zeros_lz4, id="lz4"),
    pytest.param(Codec.SNAPPY, zeros_snappy, id="snappy"),
    pytest.param(Codec.SNAPPY, lambda: raw_snappy(bytes(200 * MIB)), id="snappy, one block"),
    pytest.param(Codec.ZSTD, zeros_zstd, id="zstd"),
    pytest.param(Codec.ZSTD, lambda: compress(Codec.ZSTD, bytes(200 * MIB)), id="zstd, size declared"),
]


@pytest.mark.gate(1)
@pytest.mark.parametrize(("codec", "make"), BOMBS)
def test_a_bomb_costs_no_more_than_the_bound(codec: Codec, make: Callable[[], bytes]) -> None:
    """[REC-4] 200 MiB of zeros, against a small bound and against the ordinary one."""
    bomb = make()
    slack = 3 * OUTPUT_PIECE
    with peak_below(8 * MIB * 9 // 8 + slack), pytest.raises(InvalidBatch, match="the bound is"):
        decompress(codec, bomb, max_bytes=8 * MIB)
    with (
        peak_below(DECOMPRESSED_BYTES_MAX * 9 // 8 + slack),
        pytest.raises(InvalidBatch, match="the bound is"),
    ):
        decompress(codec, bomb)


@pytest.mark.parametrize(("codec", "make"), BOMBS)
@pytest.mark.gate(1)
def test_a_bomb_in_a_batch_costs_no_more_either(codec: Codec, make: Callable[[], bytes]) -> None:
    header = BatchHeader(0, 0, 0, 2, 0, codec, 0, 0, 0, -1, -1, -1, 1)
    batch = build_batch(header, make())
    limits = DecodeLimits(decompressed_bytes_max=4 * MIB)
    for read in (decode_records, lambda buf, at, limits: list(scan_keys(buf, at, limits))):
        with peak_below(4 * MIB * 9 // 8 + 3 * OUTPUT_PIECE), pytest.raises(InvalidBatch):
            read(batch, 0, limits)


def test_the_ratio_bounds_what_the_size_allows() -> None:
    """Above the floor a short payload may not unpack to everything the size allows."""
    tiny = compress(Codec.ZSTD, bytes(DECOMPRESSED_BYTES_FLOOR + 1))
    with pytest.raises(InvalidBatch, match=f"the bound is {DECOMPRESSED_BYTES_FLOOR}"):
        decompress(Codec.ZSTD, tiny)
    assert decompress(Codec.ZSTD, tiny, max_ratio=100_000) == bytes(DECOMPRESSED_BYTES_FLOOR + 1)


@pytest.mark.parametrize("codec", PACKED)
def test_a_megabyte_of_zeros_is_an_honest_value(codec: Codec) -> None:
    record = Record(0, 1, None, bytes(MIB))
    assert decode_records(encode_batch([record], BatchMeta(codec=codec))) == [record]


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f"),  # claims 4 GiB
        (Codec.SNAPPY, b"\xff\xff\xff\x07" + bytes(100)),  # claims 16 MiB
        (Codec.SNAPPY, XERIAL + b"\x7f\xff\xff\xff"),
        (Codec.SNAPPY, XERIAL + b"\xff\xff\xff\xff\0"),
        (Codec.SNAPPY, XERIAL + b"\0\0\0\0"),
        (Codec.SNAPPY, XERIAL + b"\0\0"),
        (Codec.LZ4, b""),
        (Codec.LZ4, b"\x04\x22\x4d\x18"),
        (Codec.GZIP, b""),
        (Codec.GZIP, b"\x1f\x8b\x08\0"),
        (Codec.GZIP, compress(Codec.GZIP, b"") * (GZIP_MEMBERS_MAX + 1)),
        (Codec.ZSTD, b"not zstd at all"),
        (Codec.ZSTD, b"\x28\xb5\x2f\xfd\x00\xff" + bytes(20)),  # a window of petabytes
    ],
)
def test_nonsense_is_refused_cheaply(codec: Codec, payload: bytes) -> None:
    with peak_below(2 * MIB), pytest.raises(InvalidBatch):
        decompress(codec, payload)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.slow
def test_records_of_every_length_around_the_pieces_are_unpacked(
    codec: Codec, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces drawn so small that data ends just before, at, just behind and far behind each of them."""
    monkeypatch.setattr(compression, "_XERIAL_BLOCK", 32)
    for output_piece, input_piece in ((1, 1), (16, 7), (16, 64)):
        monkeypatch.setattr(compression, "OUTPUT_PIECE", output_piece)
        monkeypatch.setattr(compression, "INPUT_PIECE", input_piece)
        for size in (0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000):
            for data in (TEXT[:size], bytes(size), random.Random(size).randbytes(size)):
                packed = compress(codec, data)
                if codec is Codec.LZ4:
                    packed = lz4.frame.compress(data, block_linked=linked)
                assert decompress(codec, packed) == data
                if not data:
                    continue
                assert decompress(codec, packed, max_bytes=size) == data
                with pytest.raises(InvalidBatch, match="the bound is"):
                    decompress(codec, packed, max_bytes=size - 1)
