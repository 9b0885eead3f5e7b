"""The pytest plugin: fixtures that give a test a broker, available as soon as tallystick is installed.

    def test_orders(tallystick_broker):
        producer = Producer({"bootstrap.servers": tallystick_broker.bootstrap_servers})

`tallystick_broker` belongs to one test: it starts empty and is removed afterwards. It runs in a child
process, so a test can `kill` and `restart` it. A marker sets its configuration: as keywords, by Kafka's names
with underscores for dots, or as a dict. `in_process=True` runs the broker in a thread instead, which starts
sooner but cannot be killed.

    @pytest.mark.tallystick_broker(num_partitions=3, in_process=True)
    @pytest.mark.tallystick_broker({"log.retention.ms": 1000})

Markers of a function are merged with those of its class and module, and take precedence over them.

`tallystick_session_broker` is started once for all tests that ask for it; they see each other's topics. Its
settings are lines of the ini option `tallystick_settings`:

    [tool.pytest.ini_options]
    tallystick_settings = ["num.partitions=3"]

`tallystick_schema_registry` is an empty schema registry for one test, in memory; `url` is its address.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from tallystick import testing

if TYPE_CHECKING:
    from tallystick.broker.embedded import EmbeddedBroker
    from tallystick.testing.schema_registry import SchemaRegistry

MARKER = "tallystick_broker"
INI_OPTION = "tallystick_settings"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        INI_OPTION, "settings of tallystick_session_broker, a line each: name=value", type="linelist"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(config=None, *, in_process=False, **settings): settings of `tallystick_broker`"
    )


@pytest.fixture
def tallystick_broker(request: pytest.FixtureRequest) -> Iterator["EmbeddedBroker"]:
    """Provide an empty broker for this test alone."""
    settings: dict[str, object] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        settings |= _marker_settings(marker)
    in_process = bool(settings.pop("in.process", False))
    with _embedded_broker(settings, in_process) as broker:
        yield broker


@pytest.fixture(scope="session")
def tallystick_session_broker(pytestconfig: pytest.Config) -> Iterator["EmbeddedBroker"]:
    """Provide a broker that all tests of the run share."""
    with _embedded_broker(_parse_settings(pytestconfig.getini(INI_OPTION)), in_process=False) as broker:
        yield broker


@pytest.fixture
def tallystick_schema_registry() -> Iterator["SchemaRegistry"]:
    """Provide an empty schema registry for this test alone."""
    with testing.SchemaRegistry() as registry:
        yield registry


def _marker_settings(marker: pytest.Mark) -> dict[str, object]:
    settings: dict[str, object] = {}
    for config in marker.args:
        if not isinstance(config, Mapping):
            raise pytest.UsageError(f"{MARKER}: settings are a dict or keywords, not {config!r}")
        settings |= config
    return settings | {name.replace("_", "."): value for name, value in marker.kwargs.items()}


def _parse_settings(lines: list[str]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"{INI_OPTION}: {line!r} is not name=value")
        settings[name.strip()] = value.strip()
    return settings


def _embedded_broker(config: Mapping[str, object], in_process: bool) -> "EmbeddedBroker":
    # Loaded when a test asks for a broker: this module is imported in every run of pytest.
    return testing.EmbeddedBroker(in_process=in_process, config=config)
