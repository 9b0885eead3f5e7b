"""Every unit of work has a small size in `tests/support/small_units.py`, and tests pass with all of them."""

import ast
import os
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from tests.support.effort import LONG
from tests.support.small_units import UNITS, shrink

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

# Numbers that say how much is done at a time, by their names; those that bound what there may be are limits.
UNIT = re.compile(
    r"SLICE|CHUNK|PIECE|BEFORE_YIELD|_AT_ONCE|_PER_(TICK|POLL|REQUEST)|CONCURRENT|CACHED|IN_FLIGHT|WATER_BYTES"
    r"|(BUFFER|FETCH|FILE|GROUP|JOINED|JOIN_BELOW|PART|READ|SCAN|STREAM|UPLOAD|WRITE)_(BYTES|ROWS)"
)
NUMBER = re.compile(r"[\w\s*/<]+")
NO_UNITS = {
    "tallystick.broker.txn.start_comparison.SCAN_BYTES_MAX": "a limit, which is made of SCAN_BYTES",
    "tallystick.kernel.limits.PRODUCER_BATCHES_CACHED": "Kafka's number, which tests name",
    "tallystick.lake.iceberg._REWRITE_BYTES": "the length of a random name",
    "tallystick.spark.files.hadoop.FILE_BYTES_MAX": "a limit",
}

SHORT = (
    "tests/unit/storage/test_cleaner.py",
    "tests/unit/storage/test_storage_log.py",
    "tests/unit/storage/test_storage_recovery.py",
    "tests/unit/storage/test_storage_segment.py",
    "tests/unit/group",
    "tests/unit/txn",
    "tests/unit/client/test_arrow.py",
    "tests/unit/client/test_arrow_table.py",
    "tests/unit/client/test_fetching.py",
    "tests/unit/spark/test_spark_tallying.py",
    "tests/spec/test_kip_98_read_committed.py",
    "tests/integration/client/test_client_consumer.py",
    "tests/integration/admin/test_admin_transactions.py",
    "tests/integration/admin/test_resolve_accept_mixed.py",
    "tests/integration/console/test_console_lookups.py",
)
MORE = (
    *(
        f"tests/unit/{name}"
        for name in ("admin", "broker", "client", "handlers", "lake", "protocol", "records")
    ),
    *(f"tests/unit/{name}" for name in ("console/test_lag_counts.py", "dualwrite", "spark", "storage")),
    "tests/spec",
    "tests/properties/test_spark_protocol.py",
    *(f"tests/integration/{name}.py" for name in ("broker/test_broker_wire", "lake/test_lake_delta")),
    "tests/integration/client/test_arrow_both_ways.py",
    "tests/integration/client/test_transaction_log_follower.py",
)
LEFT_OUT = {
    "it names the size of a unit": (
        "tests/unit/broker/test_acl_rules.py::test_what_is_known_is_of_one_connection",
        "tests/unit/broker/test_acl_rules.py::test_a_change_of_the_acls_reaches_every_connection",
        "tests/unit/broker/test_measures.py::test_the_reserve_shows_what_it_holds_and_lacks",
        "tests/unit/group/test_group_driver.py::test_commits_share_a_batch_of_bounded_bytes",
        "tests/unit/group/test_group_driver.py::test_commits_that_queue_share_one_append",
        "tests/unit/group/test_group_transactions.py::test_commits_of_different_producers_share_a_sync",
        "tests/unit/handlers/test_walked_batches.py::test_another_codec_keeps_the_records_as_they_are",
        "tests/unit/lake/test_lake_data_files.py::test_rows_become_one_file_in_the_tables_types",
        "tests/unit/lake/test_lake_data_files.py::test_uploads_of_many_partitions_are_ended_in_time",
        "tests/unit/console/test_lag_counts.py::test_what_is_too_much_to_read_is_given_up",
        "tests/integration/client/test_transaction_log_follower.py::test_one_poll_reads_a_bounded_number",
    ),
    "it counts the turns of the loop": (
        "tests/unit/handlers/test_distinct.py::test_a_waiting_fetch_counts_only_the_partition_that_moved",
        "tests/unit/handlers/test_long_requests.py",
        "tests/unit/handlers/test_transactional_id_patterns.py::test_costly_patterns_free_the_loop",
        "tests/unit/txn/test_txn_driver_life.py::test_what_is_replayed_is_what_was",
        "tests/unit/txn/test_txn_sending.py::test_who_is_put_off_later_is_not_forgotten",
    ),
    "it takes minutes: 200 MiB are unpacked, 32,767 epochs used up": (
        "tests/unit/records/test_records_compression.py",
        "tests/spec/test_kip_939.py::test_two_phase_commit_with_two_epoch_overflows",
        "tests/spec/test_kip_939_client.py::test_the_example_with_two_overflows",
    ),
}


def list_units(path: Path) -> list[str]:
    module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return [
        f"{module}.{node.target.id}"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if UNIT.search(node.target.id) and node.value and NUMBER.fullmatch(ast.unparse(node.value))
        if node.target.id not in UNITS.get(module, {})
    ]


@pytest.mark.gate(0)
def test_every_unit_of_work_has_a_small_size() -> None:
    assert sorted(chain.from_iterable(map(list_units, SOURCE.rglob("*.py")))) == sorted(NO_UNITS)


@pytest.mark.parametrize("module", UNITS)
@pytest.mark.slow
def test_the_units_are_those_of_their_modules(module: str) -> None:
    path = SOURCE / module.replace(".", "/")
    shrink(ast.parse(path.with_suffix(".py").read_text()), UNITS[module])


@pytest.mark.gate(0)
@pytest.mark.server
@pytest.mark.timeout(3600)
def test_data_that_is_longer_than_every_unit_is_handled_as_any_other() -> None:
    left_out = chain.from_iterable(LEFT_OUT.values())
    effort = {"TALLYSTICK_SMALL_UNITS": "1", "TALLYSTICK_LONG": "0", "HYPOTHESIS_PROFILE": "quick"}
    options = ["-n", "0", "-p", "no:randomly", "-m", "not kafka and not mount", "--tb", "short"]
    options += [f"--deselect={name}" for name in left_out]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *SHORT, *(MORE if LONG else ())],
        cwd=ROOT,
        env={**os.environ, **effort},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
