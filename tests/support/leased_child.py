"""A worker without a name of its own: `leased_child URL SERVERS TOPIC SIZE [STEP before|after]`.

It waits for a line, recovers a pool with leases, prints its ids as JSON, waits for another line, and pays 1.
With a step it kills itself there, before or after it. A third line, or the end of its input, ends it.
"""

import json
import os
import signal
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tallystick.dualwrite import Lease, SqlStore, WriterPool
from tallystick.dualwrite.block.steps import RecipeStep


def main(url: str, servers: str, topic: str, size: str, step_name: str = "", when: str = "") -> None:
    def watch(_: int, step: RecipeStep, done: bool) -> None:
        if step.name == step_name and done == (when == "after"):
            os.kill(os.getpid(), signal.SIGKILL)

    store = SqlStore(create_engine(url, poolclass=NullPool))
    config = {"bootstrap.servers": servers, "transactional.id": topic}
    with WriterPool(store, config, int(size), lease=Lease(), watch=watch) as pool:
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps([each.transactional_id for each in pool.recover().ids]), flush=True)
        if not sys.stdin.readline():
            return
        with pool.transaction() as txn:
            txn.connection.execute(text("INSERT INTO paid VALUES (1)"))
            txn.send(topic, b"1")
        print("paid", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
