"""What a collector is told: all problems at once, and no password in them."""

import subprocess
import sys

import pytest

from tallystick.client.errors import Unreachable, build_broker_error
from tallystick.console.collect.config import CollectorConfig, Pace, Paces
from tallystick.console.collect.failures import SENTENCES_MAX, describe_failures, limit_sentences
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.settings import BadConfig


def test_all_problems_are_told_at_once() -> None:
    paces = Paces(topics=Pace(interval_ms=0))
    urls = ["me:hush@host/shop", "mysql://me:a@host/shop", "mysql://me:b@host/shop"]
    with pytest.raises(BadConfig) as raised:
        CollectorConfig.check(
            {"bootstrap.servers": "localhost", "linger.ms": "5"},
            urls,
            decision_topics=("",),
            paces=paces,
            named_max=-1,
        )
    lines = str(raised.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "linger.ms",
        "bootstrap.servers",
        "store 1",
        "store mysql",
        "decision topic",
        "pace of topics",
        "named_max",
    ]
    assert "hush" not in str(raised.value)


def test_a_url_given_twice_is_one_store() -> None:
    client = {"bootstrap.servers": "localhost:9092"}
    config = CollectorConfig.check(client, ["sqlite:////a.db", "sqlite:////a.db"])
    assert [store.name for store in config.stores] == ["sqlite:////a.db"]


def test_a_call_ends_within_the_limit_of_its_part_unless_told_otherwise() -> None:
    client = {"bootstrap.servers": ["a:1", "b:2"]}
    config = CollectorConfig.check(client)
    assert config.admin_settings["default.api.timeout.ms"] == config.paces.transactions.limit_ms
    assert config.bootstrap_servers == "a:1,b:2"
    config = CollectorConfig.check({**client, "default.api.timeout.ms": 40_000, "client.id": "me"})
    assert config.admin_settings["default.api.timeout.ms"] == 40_000
    assert config.admin_settings["client.id"] == "me"


def test_failures_of_one_kind_are_one_sentence() -> None:
    refused = {
        f"t-{n}": build_broker_error("Fetch", f"t-{n}", ErrorCode.NOT_LEADER_OR_FOLLOWER) for n in range(3)
    }
    told = describe_failures({**refused, "broker 2": Unreachable("b:2", "refused")})
    assert len(told) == 2
    assert told[0] == "Fetch 't-0': NOT_LEADER_OR_FOLLOWER; 2 others too"
    assert told[1].startswith("broker 2: ")
    many = limit_sentences(str(n) for n in range(SENTENCES_MAX + 3))
    assert many[-1] == "and 3 more"
    assert len(many) == SENTENCES_MAX + 1


@pytest.mark.gate(0)
def test_the_collector_loads_nothing_of_spark_or_arrow() -> None:
    """A console runs where none of them is installed."""
    code = (
        "import sys, tallystick.console.collect.collector, tallystick.console.collect.sql_rows; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & "
        "{'pyspark', 'pyarrow', 'numpy', 'pandas', 'django', 'rocksdict', 'kazoo'}), "
        "'tallystick.broker' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["[]", "False"]
