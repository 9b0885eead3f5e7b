"""All limits in one place; the relations between them are checked at import.

Each limit keeps bytes from the network from making the process allocate, loop or wait without bound.
"""

from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.ids import INT16_MAX, INT32_MAX

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Kafka's socket.request.max.bytes default: no frame above it is read.
FRAME_BYTES_MAX_DEFAULT: Final = 100 * MIB

# The length of a non-compact string is an int16.
STRING_BYTES_MAX: Final = INT16_MAX

# Elements one array may announce. Every element takes at least one byte on the wire,
# so a decoder also refuses counts above the number of bytes left.
ARRAY_ELEMENTS_MAX: Final = 1_000_000
# All elements of one message together, so that nested arrays cannot multiply past it.
MESSAGE_ELEMENTS_MAX: Final = 1_000_000
TAGGED_FIELDS_MAX: Final = 1_000
# Decoding never costs more memory than this plus 4x the frame.
DECODE_MEMORY_BASE_BYTES: Final = 64 * MIB

# Limits the size of a request without records, and the memory for what it names. With many partitions the
# second value times their maximum number applies, if larger.
REQUEST_BYTES_MAX: Final = 16 * MIB
REQUEST_BYTES_PER_PARTITION: Final = 512

# A record batch may unpack to this many bytes, and to this many times its own size.
DECOMPRESSED_BYTES_MAX: Final = 128 * MIB
DECOMPRESSION_RATIO_MAX: Final = 2_000
# The ratio is not checked below this: zstd may compress a megabyte of zeros to 60 bytes.
DECOMPRESSED_BYTES_FLOOR: Final = 16 * MIB
RECORDS_PER_BATCH_MAX: Final = 1_000_000  # librdkafka's limit of batch.num.messages
# Records of a refused batch named in the response (KIP-467); Kafka's clients show only the message.
RECORD_ERRORS_MAX: Final = 10
HEADERS_PER_RECORD_MAX: Final = 10_000

# Kafka keeps the last five batches of a producer to detect duplicates.
PRODUCER_BATCHES_CACHED: Final = 5

# Topic names (Kafka: at most 249 characters, so that "-<partition>" fits a file name).
TOPIC_NAME_LENGTH_MAX: Final = 249

# Kafka's clients refuse a longer group.instance.id.
GROUP_INSTANCE_ID_LENGTH_MAX: Final = 249
# Characters of the client id in a member id; the rest of it is a UUID.
CLIENT_ID_LOGGED_MAX: Final = 255

# Characters of an error message in a response; longer ones quote names from the request.
REASON_LENGTH_MAX: Final = 2_000

EPOCH_MAX: Final = INT16_MAX

check(FRAME_BYTES_MAX_DEFAULT <= INT32_MAX, "a frame's length is an int32")
check(DECOMPRESSED_BYTES_MAX >= FRAME_BYTES_MAX_DEFAULT, "an uncompressed frame must always fit")
check(
    4 * max(CLIENT_ID_LOGGED_MAX, GROUP_INSTANCE_ID_LENGTH_MAX) + 64 < STRING_BYTES_MAX,
    "a member id fits a string, whatever the letters of its client id",
)
check(4 * REASON_LENGTH_MAX + 1_000 < STRING_BYTES_MAX, "a reason fits a string, whatever its letters")
check(DECOMPRESSED_BYTES_FLOOR <= DECOMPRESSED_BYTES_MAX, "the floor lies below the bound")
