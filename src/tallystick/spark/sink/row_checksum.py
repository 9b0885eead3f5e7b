"""Row counts and checksums that do not depend on the order of rows or their distribution over tasks.

The hash of a row covers all of its record: topic, partition, key, value and headers; null differs from empty.
The checksum is the sum of the hashes modulo 2^64, so it stays the same however Spark splits a batch that it
runs again [SPK-22]. The hash is CRC-32C, mixed to 64 bits: it detects accidental differences only.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallystick.protocol.records.crc import crc32c
from tallystick.spark.protocol.committable import RowChecksum

# Arbitrary odd constants that keep the parts of a row apart. The mixer is that of SplitMix64.
_KEY_LENGTH_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_NO_KEY_FACTOR: Final = np.uint64(0xD1B54A32D192ED03)
_NO_VALUE_FACTOR: Final = np.uint64(0x8CB92BA72F3D8DD7)
_TOPIC_FACTOR: Final = np.uint64(0xAAAAAAAAAAAAAAAB)
_PARTITION_FACTOR: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_HEADERS_FACTOR: Final = np.uint64(0x165667B19E3779F9)

_SLICE_BYTES: Final = 128 * 1024

Hashes = Any
"""A numpy array of uint64, one for each row."""


def checksum_columns(
    values: pa.Array,
    keys: pa.Array | None = None,
    topics: pa.Array | None = None,
    partitions: pa.Array | None = None,
    headers: pa.Array | None = None,
) -> RowChecksum:
    """Return the tally of rows that are given as columns of equal length.

    Cost: about 0.1 us a row of 100 bytes without keys, 0.2 with.
    """
    count = len(values)
    rows = np.zeros(count, np.uint64)
    seeds: Sequence[int] | repeat[int] = repeat(0)
    if keys is not None and keys.null_count < count:
        seeds = list(map(crc32c, _iter_values(keys)))
        lengths = pc.binary_length(keys).cast(pa.int64()).fill_null(0)
        rows += lengths.to_numpy().astype(np.uint64) * _KEY_LENGTH_FACTOR
    rows += np.fromiter(map(crc32c, _iter_values(values), seeds), np.uint64, count)
    rows += _NO_KEY_FACTOR if keys is None else _build_null_mask(keys) * _NO_KEY_FACTOR
    rows += _build_null_mask(values) * _NO_VALUE_FACTOR
    if topics is not None:
        rows += _hash_topics(topics) * _TOPIC_FACTOR
    if partitions is not None:
        rows += partitions.cast(pa.int64()).fill_null(-1).to_numpy().astype(np.uint64) * _PARTITION_FACTOR
    if headers is not None and headers.null_count < count:
        rows += np.fromiter(map(_hash_headers, headers.to_pylist()), np.uint64, count) * _HEADERS_FACTOR
    return RowChecksum(count, int(np.add.reduce(_mix_hashes(rows))))


def _mix_hashes(rows: Hashes) -> Hashes:
    rows = (rows ^ (rows >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    rows = (rows ^ (rows >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return rows ^ (rows >> np.uint64(31))


def _iter_values(column: pa.Array) -> Iterator[bytes]:
    """Yield the values as bytes, converting a few at a time to reuse memory and the CPU's cache.

    Strings of 1,000 bytes take a third of the time that way.
    """
    plain = column.cast(pa.binary()) if not pa.types.is_large_binary(column.type) else column
    plain = plain.fill_null(b"") if plain.null_count else plain
    few = max(1, _SLICE_BYTES * len(plain) // max(1, plain.nbytes))
    return chain.from_iterable(plain.slice(at, few).to_pylist() for at in range(0, len(plain), few))


def _build_null_mask(column: pa.Array) -> Hashes:
    if not column.null_count:
        return np.uint64(0)
    return column.is_null().to_numpy(zero_copy_only=False).astype(np.uint64)


def _hash_topics(column: pa.Array) -> Hashes:
    """Hash topics through a dictionary, since a few of them repeat many times."""
    topics = column.dictionary_encode()
    texts = np.array([crc32c(text.encode()) for text in topics.dictionary.to_pylist()] + [1], np.uint64)
    return texts[topics.indices.fill_null(len(texts) - 1).to_numpy()]


def _hash_headers(headers: list[dict[str, Any]] | None) -> int:
    crc = 0
    for header in headers or ():
        name, value = header["key"].encode(), header["value"]
        parts = b"%d:%b%d:%b" % (len(name), name, -1 if value is None else len(value), value or b"")
        crc = crc32c(parts, crc)
    return crc
