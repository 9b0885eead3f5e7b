"""Configuration of actions: settings of clients, stores with their passwords, and limits."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tallystick.client.settings.config import AdminConfig, ProducerConfig
from tallystick.console.collect.store_reader import StoreAddress
from tallystick.kernel.settings import BadConfig, collect_problems
from tallystick.kernel.value import Value

DEFAULT_LIMIT_MS: Final = 30_000
"""Limit of a call, unless the client's settings say otherwise: an operator waits for it."""

# Each has its value from the id that is resolved, or from the modes.
_PER_ID_SETTINGS: Final = frozenset({"transactional.id", "transaction.two.phase.commit.enable"})


class ActionConfig(Value, kw_only=True):
    """Settings of actions.

    admin, producer  settings of clients, by Kafka's dotted names
    stores           the console's stores; an action names one by its URL without the password
    audit_log        a file that gets every line of the audit log
    read_limit_ms    for all that a dry run reads
    run_limit_ms     after which the outcome is called unknown, although the action may still be under way
    """

    admin: Mapping[str, object]
    producer: Mapping[str, object]
    stores: tuple[StoreAddress, ...] = ()
    decision_topics: tuple[str, ...] = ()
    audit_log: Path | None = None
    read_limit_ms: int = 10_000
    run_limit_ms: int = 180_000

    @property
    def bootstrap_servers(self) -> str:
        given = self.admin.get("bootstrap.servers", "")
        return given if isinstance(given, str) else ",".join(map(str, given))  # type: ignore[call-overload]

    @property
    def admin_settings(self) -> Mapping[str, object]:
        """Settings of the administrator that acts."""
        ours = {"client.id": "tallystick-console", "default.api.timeout.ms": DEFAULT_LIMIT_MS}
        return {**ours, **self.admin}

    @property
    def reader_settings(self) -> Mapping[str, object]:
        """Settings of the administrator that reads: it gives up before the reading does."""
        limit_ms = max(1, self.read_limit_ms // 2)
        return {**self.admin_settings, "default.api.timeout.ms": limit_ms, "request.timeout.ms": limit_ms}

    @property
    def producer_settings(self) -> Mapping[str, object]:
        """Settings of the producer that ends a transaction, without `transactional.id`."""
        return {"client.id": "tallystick-console", "max.block.ms": DEFAULT_LIMIT_MS, **self.producer}

    @property
    def spark_settings(self) -> dict[str, str]:
        """Settings for the transactions of a Spark query; its modes decide which of them use two phases."""
        settings = self.producer_settings
        return {name: str(value) for name, value in settings.items() if name not in _PER_ID_SETTINGS}

    def find_store(self, name: str) -> StoreAddress:
        """Return the store of a name. Raises: BadConfig."""
        for store in self.stores:
            if store.name == name:
                return store
        raise BadConfig(f"{name} is no store of this console")

    def find_problems(self) -> Iterator[str]:
        """Yield what is wrong with the clients' settings."""
        problems: list[str] = []
        with collect_problems(problems):
            AdminConfig.parse(self.reader_settings)
        with collect_problems(problems):
            ProducerConfig.parse({**self.producer_settings, "transactional.id": "any"})
        yield from problems
