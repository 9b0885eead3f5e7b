"""Transactions of one message through librdkafka: `python -m tools.bench.load_transactions JSON` prints JSON.

One thread a producer; the client library releases the interpreter while it waits for the broker.
"""

import json
import sys
import threading
import time
from typing import Final, TypedDict

from confluent_kafka import Producer

START_SECONDS_MAX: Final = 60.0


class TransactionLoad(TypedDict):
    """What to commit, and for how long."""

    bootstrap: str
    topic: str
    partitions: int
    producers: int
    warm_up_s: float
    seconds: float
    size: int


class Worker(threading.Thread):
    """One transactional producer; what it raises is in `failure`."""

    def __init__(self, load: TransactionLoad, number: int, together: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self._load = load
        self._number = number
        self._together = together
        self.committed = 0
        self.taken_ms: list[float] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._commit_until_time_is_up(self._producer())
        except BaseException as exc:
            self.failure = exc
            self._together.abort()

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._load["bootstrap"],
                "transactional.id": f"{self._load['topic']}-{self._number}",
                "linger.ms": 0,
            }
        )
        producer.init_transactions(START_SECONDS_MAX)
        return producer

    def _commit_until_time_is_up(self, producer: Producer) -> None:
        load, clock = self._load, time.perf_counter
        topic, partition, value = load["topic"], self._number % load["partitions"], bytes(load["size"])
        self._together.wait(START_SECONDS_MAX)
        counted_from = clock() + load["warm_up_s"]
        ends = counted_from + load["seconds"]
        while (begun := clock()) < ends:
            producer.begin_transaction()
            producer.produce(topic, value, partition=partition)
            producer.commit_transaction(START_SECONDS_MAX)
            self.committed += 1
            if begun >= counted_from and (done := clock()) < ends:
                self.taken_ms.append((done - begun) * 1000)


def main() -> None:
    """Read the load from the only argument, do it, print what it took."""
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
    taken = [ms for worker in workers for ms in worker.taken_ms]
    print(json.dumps({"committed": sum(w.committed for w in workers), "taken_ms": taken}))


if __name__ == "__main__":
    main()
