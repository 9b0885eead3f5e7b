"""The units in which work is done, made so small that the data of tests is longer than each of them.

A chunk, a slice, a buffer, the size of a cache: a number that no test names. Hardly any test data crosses it
in its shipped size, and what happens at its edge would not be tried. With TALLYSTICK_SMALL_UNITS=1 pytest and
the brokers that it starts have all of them small; `tests/meta/test_small_units.py` runs tests that way.

A module is changed as it is loaded: what others import from it, or it makes of a unit, is small as well.
"""

import ast
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Final

Size = int | tuple[int, ...]

# The smallest size that works, where it is not 0 or 1; of buffers a few bytes, which costs less time.
UNITS: Final[Mapping[str, Mapping[str, Size]]] = {
    "tallystick.admin.txn.written": {"_FETCH_BYTES": 64},
    "tallystick.storage.segments.segment_scan": {"SCAN_BYTES": 96},
    "tallystick.storage.segments.segment_files": {"_SCAN_BYTES": 61},
    "tallystick.storage.compaction.cleaner": {"_WRITE_BYTES": 1},
    "tallystick.storage.compaction.rules": {"GROUP_SEGMENTS_MAX": 2, "_SLOTS_FIRST": 2},
    "tallystick.storage.log.reader": {"_READ_POSITIONS_MAX": 1},
    "tallystick.storage.disk.reserve": {"CHUNK_BYTES": 4096},
    "tallystick.storage.log.group_commit": {"HELPED_LOGS_MIN": 2},
    "tallystick.storage.state.validation": {"_INLINE_BYTES_MAX": (0, 0, 0, 0, 0), "_INLINE_RECORDS_MAX": 0},
    "tallystick.storage.disk.fs": {"_IOV_MAX": 1},
    "tallystick.protocol.codec": {"_JOIN_BELOW_BYTES": 1},
    "tallystick.protocol.frames": {"JOINED_BYTES_MIN": 100},
    "tallystick.protocol.records.record": {"_ZIGZAG_CACHED_MAX": 65},
    "tallystick.protocol.records.compression": {"INPUT_PIECE": 7, "OUTPUT_PIECE": 5, "_XERIAL_BLOCK": 16},
    "tallystick.broker.txn.start_comparison": {"SCAN_BYTES": 64, "RECORDS_PER_SLICE": 1},
    "tallystick.broker.txn.loader": {"REPLAY_CHUNK_BYTES": 64, "ENTRIES_PER_SLICE": 1},
    "tallystick.broker.txn.marker_sender": {"MARKERS_PER_SLICE": 1},
    "tallystick.broker.txn.sweeper": {"SCANNED_PER_TICK": 1, "SUBMITTED_PER_TICK": 1},
    "tallystick.broker.txn.producer_id_pool": {"POOL_SIZE": 2},
    "tallystick.broker.txn.codec": {"_CACHED_PARTITIONS_MAX": 1},
    "tallystick.broker.group.logic": {
        "REPLAY_CHUNK_BYTES": 64,
        "EVENTS_PER_SLICE": 1,
        "BATCH_OFFSETS_MAX": 1,
        "BATCH_METADATA_MAX": 1,
    },
    "tallystick.broker.group.timeouts": {"EXPIRED_GROUPS_PER_TICK": 1},
    "tallystick.broker.metadata.store": {"PRODUCER_ID_BLOCK": 1},
    "tallystick.broker.metrics.broker_metrics": {"SLICE_PARTITIONS": 1},
    "tallystick.broker.partitions.data_directory": {"_THREAD_COUNT": 1},
    "tallystick.broker.partitions.descriptors": {"OPEN_SEGMENTS_MAX": 1},
    "tallystick.broker.partitions.visibility": {"RESPONSE_BYTES_MIN": 64},
    "tallystick.broker.authorizer.standard_authorizer": {"VERDICTS_MAX": 1},
    "tallystick.broker.authorizer.known_rights": {"TOPIC_IDS_MAX": 1},
    "tallystick.broker.server.paced_tls": {"PIECE_BYTES": 7},
    "tallystick.broker.server.server": {
        "BUFFER_BYTES": 64,
        "WRITE_HIGH_WATER_BYTES": 64,
        "PIPELINE_MAX": 1,
        "_SMALL_BYTES": 16,
    },
    "tallystick.broker.server.login_rules": {"_PIECE_BYTES": 1},
    "tallystick.broker.server.request_memory": {
        "INITIAL_BUFFER_BYTES": 16,
        "TRUSTED_BUFFER_BYTES": 64,
        "PROGRESS_BYTES": 1,
    },
    "tallystick.broker.handlers.dispatch": {"INLINE_DECODE_BYTES_MAX": 512},
    "tallystick.broker.handlers.sliced_response": {"SLICE_ENTRIES": 1, "SLICE_BYTES": 16},
    "tallystick.broker.handlers.data.produce_request": {"PARTITIONS_BEFORE_YIELD": 1},
    "tallystick.broker.handlers.data.produce": {"INLINE_DECODE_MEMORY": 4096},
    "tallystick.broker.handlers.groups.committing": {"ROWS_BEFORE_YIELD": 1},
    "tallystick.broker.handlers.txn.write_txn_markers": {"MARKERS_AT_ONCE": 1},
    "tallystick.broker.handlers.txn.list_transactions": {"ENTRIES_PER_SLICE": 1, "STEPS_PER_SLICE": 1},
    "tallystick.client.net.network": {
        "READ_BUFFER_BYTES": 64,
        "PREALLOCATED_FRAME_BYTES": 16,
        "WRITE_HIGH_WATER_BYTES": 64,
    },
    "tallystick.client.net.coordinators": {"KEYS_PER_REQUEST": 1, "CACHED_MAX": 1},
    "tallystick.client.consumer.decode": {"_COLUMN_BYTES": 64},
    "tallystick.client.producer.batches.partitioner": {"_CACHED_KEYS_MAX": 1, "_CACHED_KEY_BYTES_MAX": 2},
    "tallystick.client.serializers": {"USES_MAX": 1},
    "tallystick.client.blocking.line_io": {"_BATCH_MAX": 1},
    "tallystick.admin.admin_call": {"PARTITIONS_PER_REQUEST": 1, "IDS_PER_REQUEST": 1, "CONCURRENT_MAX": 1},
    "tallystick.admin.txn.transaction_log": {
        "TRANSITIONS_PER_POLL": 1,
        "_ROUNDS_PER_POLL": 1,
        "_FETCH_BYTES": 64,
        "_PARTITION_BYTES": 64,
    },
    "tallystick.console.collect.lag_counts": {"GRAIN_BYTES": 1, "STEP_BYTES": 64},
    "tallystick.console.collect.record_counter": {"FETCH_BYTES": 64, "CONCURRENT_MAX": 1},
    "tallystick.console.collect.zookeeper_rows": {"IN_FLIGHT_MAX": 1},
    "tallystick.console.lookup.recent": {"CONCURRENT_MAX": 1},
    "tallystick.console.lookup.record_browser": {"FETCH_BYTES": 64},
    "tallystick.security.sasl.scram_client": {"_CACHED_MAX": 1},
    "tallystick.lake.iceberg_storage": {"_STREAM_BYTES": 64},
    "tallystick.lake.object_storage": {"PART_BYTES": 64, "_PARTS_AT_ONCE": 1},
    "tallystick.lake.data_files": {
        "ROW_GROUP_BYTES": 1,
        "FILE_BYTES": 1,
        "BUFFER_BYTES": 1,
        "UPLOAD_BYTES": 1,
    },
    "tallystick.lake.delta": {"_ENTRIES_MAX": 1},
    "tallystick.spark.sink.task.row_checksum": {"_SLICE_BYTES": 1},
    "tallystick.spark.sink.task.attempt": {"_CHUNK_BYTES": 1},
    "tallystick.spark.sink.task.combined_attempt": {"_CHUNK_BYTES": 1, "_CHUNK_ROWS": 1},
    "tallystick.spark.source.task_reader": {"ROWS_MAX": 1},
    "tallystick.spark.decisions.topic_reader": {"FETCH_BYTES": 64},
}


def shrink(tree: ast.Module, sizes: Mapping[str, Size]) -> None:
    """Replace a module's units. Raises LookupError if it has no longer one of them."""
    statements = {
        node.target.id: node
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for name, size in sizes.items():
        if name not in statements:
            raise LookupError(f"{name} is no constant of its module: correct UNITS in {__file__}")
        value = statements[name].value
        assert value is not None
        statements[name].value = ast.copy_location(ast.parse(str(size), mode="eval").body, value)


class SmallUnitsLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compile the module; a compiled file would be taken for one of the shipped sizes."""
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path))
        shrink(tree, UNITS[fullname])
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code


class SmallUnitsFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in UNITS else None
        if spec is not None and spec.origin is not None:
            spec.loader = SmallUnitsLoader(fullname, spec.origin)
        return spec


def install() -> None:
    """Let every module of the table be loaded with small units. Raises RuntimeError if one is loaded."""
    if loaded := UNITS.keys() & sys.modules.keys():
        raise RuntimeError(f"loaded before their units could be small: {', '.join(sorted(loaded))}")
    sys.meta_path.insert(0, SmallUnitsFinder())


if os.environ.get("TALLYSTICK_SMALL_UNITS") == "1":
    install()
