"""Transactions of one message from Python: `python -m tools.bench.loads.transactions JSON` prints JSON.

They go through librdkafka or our own client, with one thread per producer.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TypedDict

from confluent_kafka import Producer as ConfluentProducer

from tallystick import Producer

START_SECONDS_MAX: Final = 60.0


class TransactionLoad(TypedDict):
    """The client, the topic, the number of producers and the duration of a run."""

    client: str
    bootstrap: str
    topic: str
    partitions: int
    producers: int
    warm_up_s: float
    seconds: float
    size: int


class Worker(threading.Thread):
    """A thread with one transactional producer; `failure` holds its exception."""

    def __init__(self, load: TransactionLoad, number: int, together: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self._load = load
        self._number = number
        self._together = together
        self.commits = 0
        self.times_ms: list[float] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            commit = prepare_ours if self._load["client"] == "tallystick" else prepare_librdkafka
            self._commit_until_time_is_up(commit(self._load, self._number))
        except BaseException as exc:
            self.failure = exc
            self._together.abort()

    def _commit_until_time_is_up(self, commit: Callable[[], None]) -> None:
        load, clock = self._load, time.perf_counter
        self._together.wait(START_SECONDS_MAX)
        counted_from = clock() + load["warm_up_s"]
        deadline = counted_from + load["seconds"]
        while (began := clock()) < deadline:
            commit()
            self.commits += 1
            if began >= counted_from and (end := clock()) < deadline:
                self.times_ms.append((end - began) * 1000)


def prepare_librdkafka(load: TransactionLoad, number: int) -> Callable[[], None]:
    """Return a call that does one transaction with confluent-kafka."""
    producer = ConfluentProducer(list_settings(load, number))
    producer.init_transactions(START_SECONDS_MAX)
    topic, partition, value = load["topic"], number % load["partitions"], bytes(load["size"])

    def commit() -> None:
        producer.begin_transaction()
        producer.produce(topic, value, partition=partition)
        producer.commit_transaction(START_SECONDS_MAX)

    return commit


def prepare_ours(load: TransactionLoad, number: int) -> Callable[[], None]:
    """Return a call that does one transaction with our client."""
    producer = Producer(list_settings(load, number))
    producer.init_transactions()
    topic, partition, value = load["topic"], number % load["partitions"], bytes(load["size"])

    def commit() -> None:
        producer.begin_transaction()
        producer.send(topic, value, partition=partition)
        producer.commit_transaction()

    return commit


def list_settings(load: TransactionLoad, number: int) -> dict[str, str | int]:
    """Return the settings that both clients share."""
    return {
        "bootstrap.servers": load["bootstrap"],
        "transactional.id": f"{load['topic']}-{number}",
        "linger.ms": 0,
    }


def main() -> None:
    """Read the load from the only argument, run it, and print the time it took."""
    load: TransactionLoad = json.loads(sys.argv[1])
    together = threading.Barrier(load["producers"])
    workers = [Worker(load, number, together) for number in range(load["producers"])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failures = [w.failure for w in workers if w.failure]
    real = [f for f in failures if not isinstance(f, threading.BrokenBarrierError)] or failures
    if real:
        raise real[0]
    times_ms = [ms for worker in workers for ms in worker.times_ms]
    print(json.dumps({"committed": sum(w.commits for w in workers), "taken_ms": times_ms}))


if __name__ == "__main__":
    main()
