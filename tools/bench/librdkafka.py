"""The few functions of librdkafka's C API that put load on a broker, through ctypes.

A Python call per message costs more than either broker spends on it, so messages are passed in batches and
stay in C memory. The library is the one inside the confluent-kafka wheel.
"""

import ctypes
import importlib.metadata
import time
from collections.abc import Mapping
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from pathlib import Path
from typing import Final

PRODUCER: Final = 0
CONSUMER: Final = 1
FLAG_COPY: Final = 0x2
FLAG_BLOCK: Final = 0x4
FLAG_PARTITION: Final = 0x8
OFFSET_BEGINNING: Final = -2


class Message(Structure):
    """The C struct rd_kafka_message_t."""

    _fields_ = (
        ("err", c_int32),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("_private", c_void_p),
    )


_SIGNATURES: Final = {
    "rd_kafka_version_str": (c_char_p, []),
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
    "rd_kafka_topic_destroy": (None, [c_void_p]),
    "rd_kafka_produce_batch": (c_int, [c_void_p, c_int32, c_int, POINTER(Message), c_int]),
    "rd_kafka_flush": (c_int32, [c_void_p, c_int]),
    "rd_kafka_poll": (c_int, [c_void_p, c_int]),
    "rd_kafka_queue_new": (c_void_p, [c_void_p]),
    "rd_kafka_queue_destroy": (None, [c_void_p]),
    "rd_kafka_consume_start_queue": (c_int, [c_void_p, c_int32, c_int64, c_void_p]),
    "rd_kafka_consume_stop": (c_int, [c_void_p, c_int32]),
    "rd_kafka_consume_batch_queue": (c_ssize_t, [c_void_p, c_int, POINTER(POINTER(Message)), c_size_t]),
    "rd_kafka_consume_callback_queue": (c_int, [c_void_p, c_int, c_void_p, c_void_p]),
    "rd_kafka_message_destroy": (None, [c_void_p]),
    "rd_kafka_query_watermark_offsets": (
        c_int32,
        [c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int],
    ),
}


NOT_LEADER: Final = 6
LEADER_WAIT_S: Final = 10.0


class LoadFailed(Exception):
    """librdkafka refused an operation, or messages are missing."""


def _open() -> ctypes.CDLL:
    files = importlib.metadata.files("confluent-kafka") or []
    libraries = [Path(str(f.locate())) for f in files if "librdkafka" in f.name and ".so" in f.name]
    if not libraries:
        raise LoadFailed("the installed confluent-kafka does not bundle librdkafka")
    library = ctypes.CDLL(str(libraries[0]))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


LIB: Final = _open()
# A callback that does nothing and needs no Python: this C function takes no arguments and returns at once.
NO_OP: Final = ctypes.cast(LIB.rd_kafka_version, c_void_p)


def read_version() -> str:
    """Return librdkafka's version."""
    return str(LIB.rd_kafka_version_str().decode())


class Client:
    """A producer or consumer handle, destroyed by `close`."""

    def __init__(self, kind: int, config: Mapping[str, str]) -> None:
        error = ctypes.create_string_buffer(512)
        conf = LIB.rd_kafka_conf_new()
        for name, value in config.items():
            if LIB.rd_kafka_conf_set(conf, name.encode(), value.encode(), error, len(error)):
                raise LoadFailed(error.value.decode())
        self.handle = LIB.rd_kafka_new(kind, conf, error, len(error))
        if not self.handle:
            raise LoadFailed(error.value.decode())

    def open_topic(self, name: str) -> int:
        """Return a topic handle; destroy it before `close`."""
        return int(LIB.rd_kafka_topic_new(self.handle, name.encode(), None))

    def read_offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the log start offset and high watermark from the broker; also waits for the connection."""
        low, high = c_int64(), c_int64()
        args = (self.handle, topic.encode(), partition, ctypes.byref(low), ctypes.byref(high), 30_000)
        give_up_at = time.monotonic() + LEADER_WAIT_S
        while code := LIB.rd_kafka_query_watermark_offsets(*args):
            # Kafka's metadata names a leader before that broker knows that it leads.
            if code != NOT_LEADER or time.monotonic() > give_up_at:
                raise LoadFailed(f"offsets of {topic}-{partition}: librdkafka error {code}")
            time.sleep(0.05)
        return low.value, high.value

    def close(self) -> None:
        """Destroy the handle."""
        LIB.rd_kafka_destroy(self.handle)
