"""Every maximum in one place, with the relations between them checked at import.

A limit exists so that bytes from outside cannot make us allocate, loop or wait without bound.
"""

from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.ids import INT16_MAX, INT32_MAX

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Kafka's socket.request.max.bytes default: no frame above it is read.
FRAME_BYTES_MAX_DEFAULT: Final = 100 * MIB

# A classic string has an int16 length.
STRING_BYTES_MAX: Final = INT16_MAX

# Elements one array may announce; every element costs at least one byte on the wire,
# so a decoder also refuses counts above the bytes that are left.
ARRAY_ELEMENTS_MAX: Final = 1_000_000
# All elements of one message together: nested arrays cannot multiply past this.
MESSAGE_ELEMENTS_MAX: Final = 1_000_000
TAGGED_FIELDS_MAX: Final = 1_000
# Decoding never costs more memory than this plus 4x the frame.
DECODE_MEMORY_BASE_BYTES: Final = 64 * MIB

# A request that carries no records has at most so many bytes, and what it names takes at most so much memory;
# more where there may be more partitions to name.
REQUEST_BYTES_MAX: Final = 16 * MIB
REQUEST_BYTES_PER_PARTITION: Final = 512

# A record batch may unpack to this many bytes, and to this many times its own size.
DECOMPRESSED_BYTES_MAX: Final = 128 * MIB
DECOMPRESSION_RATIO_MAX: Final = 2_000
# Up to here the ratio is not looked at: zstd packs a megabyte of zeros into 60 bytes, and rightly.
DECOMPRESSED_BYTES_FLOOR: Final = 16 * MIB
RECORDS_PER_BATCH_MAX: Final = 1_000_000  # librdkafka's own bound of batch.num.messages
# So many records of a refused batch are named in the answer; Kafka's clients read the message alone.
RECORD_ERRORS_MAX: Final = 10
HEADERS_PER_RECORD_MAX: Final = 10_000

# Kafka keeps the last five batches of a producer to recognise a repetition.
PRODUCER_BATCHES_CACHED: Final = 5

# Topic names (Kafka: at most 249 characters, so that "-<partition>" fits a file name).
TOPIC_NAME_LENGTH_MAX: Final = 249

# Kafka's clients refuse a longer group.instance.id themselves.
GROUP_INSTANCE_ID_LENGTH_MAX: Final = 249
# What a member id shows of its client id; the rest of it is a UUID.
CLIENT_ID_SHOWN_MAX: Final = 255

# Of the reason for a refusal so many characters are told; longer ones quote names that were sent to us.
REASON_LENGTH_MAX: Final = 2_000

EPOCH_MAX: Final = INT16_MAX
SEQUENCE_MAX: Final = INT32_MAX

check(FRAME_BYTES_MAX_DEFAULT <= INT32_MAX, "a frame's length is an int32")
check(DECOMPRESSED_BYTES_MAX >= FRAME_BYTES_MAX_DEFAULT, "an uncompressed frame must always fit")
check(
    4 * max(CLIENT_ID_SHOWN_MAX, GROUP_INSTANCE_ID_LENGTH_MAX) + 64 < STRING_BYTES_MAX,
    "a member id fits a string, whatever the letters of its client id",
)
check(4 * REASON_LENGTH_MAX + 1_000 < STRING_BYTES_MAX, "a reason fits a string, whatever its letters")
check(DECOMPRESSED_BYTES_FLOOR <= DECOMPRESSED_BYTES_MAX, "the floor lies below the bound")
