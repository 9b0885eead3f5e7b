"""The example of a dual write with a schema registry, run as a user runs it and as a function."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import create_engine

from tallystick.testing import EmbeddedBroker, SchemaRegistry

pytestmark = pytest.mark.server

FILE = Path(__file__).parents[3] / "examples/avro_payments.py"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("avro_payments", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_and_records_agree_and_the_refused_payment_is_in_neither(
    tallystick_broker: EmbeddedBroker, tallystick_schema_registry: SchemaRegistry, tmp_path: Path
) -> None:
    example = load_example()
    engine = create_engine(f"sqlite:///{tmp_path / 'payments.db'}")
    servers = tallystick_broker.bootstrap_servers
    records = example.run(servers, tallystick_schema_registry.url, engine, ["coffee", "tea"])
    assert records == [{"what": "coffee", "cents": 350}, {"what": "tea", "cents": 350}]
    assert example.read_rows(engine) == ["coffee", "tea"]
    engine.dispose()


@pytest.mark.gate(0)
def test_the_program_brings_all_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, str(FILE), "coffee"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "refused, in both: the value of a record for topic 'payments' cannot be serialized" in done.stdout
    assert "rows: ['coffee']\nrecords: [{'what': 'coffee', 'cents': 350}]" in done.stdout
