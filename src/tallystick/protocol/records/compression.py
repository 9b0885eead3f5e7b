"""The four codecs of Kafka's record batches, in the framings Kafka's Java client reads and writes."""

from enum import IntEnum


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
