"""A stock-keeper on RocksDB: every change of the store is a record in Kafka, and every record a change.

    $ python examples/rocksdb_app.py localhost:9092 stock.db apples=3 pears=5

Kill it whenever you like: the next start brings what was in doubt to the end that the database has recorded.
"""

import sys

from rocksdict import Rdict

from tallystick.dualwrite import DualWriter, RocksStore


def main(bootstrap_servers: str, path: str, *changes: str) -> None:
    """Recover, then make these changes."""
    database = Rdict(path)
    store = RocksStore(database)
    store.create()
    config = {"bootstrap.servers": bootstrap_servers, "transactional.id": "stock"}
    with DualWriter(store, config) as writer:
        print(writer.recover(), flush=True)
        for change in changes:
            what, _, count = change.partition("=")
            with writer.transaction() as txn:
                txn.handle.put(what, count)
                txn.send("stock", count.encode(), what.encode())
            print(change, flush=True)
    store.close()
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
