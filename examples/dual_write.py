"""A database and Kafka in step, whatever crashes: KIP-939's two recipes between SQLite and a producer.

    $ python examples/dual_write.py localhost:9092 payments.db coffee tea

Run it again after any crash: it first brings what was in doubt to the end that the database has recorded.
The broker must allow two-phase commit (`transaction.two.phase.commit.enable=true`).
"""

import sqlite3
import sys

from tallystick import Completion, PreparedTxnState, Producer


def recover(producer: Producer, database: sqlite3.Connection) -> Completion:
    """Lay the two sides together: commit in Kafka exactly what the database has committed."""
    database.execute("CREATE TABLE IF NOT EXISTS payments (what TEXT)")
    database.execute("CREATE TABLE IF NOT EXISTS prepared (one INTEGER PRIMARY KEY, state TEXT)")
    stored = database.execute("SELECT state FROM prepared").fetchone()
    producer.init_transactions(keep_prepared_txn=True)
    return producer.complete_transaction(PreparedTxnState(stored[0] if stored else ""))


def pay(producer: Producer, database: sqlite3.Connection, what: str) -> None:
    """One payment in both, or in neither."""
    producer.begin_transaction()
    producer.send("payments", what.encode())
    state = producer.prepare_transaction()  # in Kafka, and in doubt
    database.execute("BEGIN")
    database.execute("INSERT INTO payments VALUES (?)", (what,))
    database.execute("INSERT OR REPLACE INTO prepared VALUES (1, ?)", (str(state),))
    database.execute("COMMIT")  # the one moment at which both are decided
    producer.commit_transaction()


def main(bootstrap_servers: str, path: str, *payments: str) -> None:
    """Recover, then make these payments."""
    config = {
        "bootstrap.servers": bootstrap_servers,
        "transactional.id": "payments-1",
        "transaction.two.phase.commit.enable": True,
    }
    database = sqlite3.connect(path, isolation_level=None)
    with Producer(config) as producer:
        recover(producer, database)
        for what in payments:
            pay(producer, database, what)
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
