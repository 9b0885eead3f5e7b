"""A Celery worker: each task is a row in a database and a record in Kafka, or neither, and once.

    $ export KAFKA=localhost:9092 DATABASE=postgresql+psycopg://localhost/shop BROKER=redis://localhost
    $ celery --workdir examples --app celery_payments worker --concurrency 4
    $ python examples/celery_payments.py ann 350

Kill its processes whenever you like: a task that is delivered again finds its id in the database.
"""

import json
import os
import socket
import sys

from celery import Celery
from celery.signals import worker_init
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tallystick.dualwrite import SqlStore, Transaction, WriterPool
from tallystick.dualwrite.contrib.celery import DualWriteTask
from tallystick.dualwrite.stores.sql import SqlTransaction

app = Celery("payments", broker=os.environ["BROKER"])
app.conf.broker_transport_options = json.loads(os.environ.get("BROKER_OPTIONS", "{}"))


class Base(DeclarativeBase):
    """Our tables."""


class Payment(Base):
    """A payment, as it is kept."""

    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


@worker_init.connect
def create_tables(**_: object) -> None:
    """Once, before the worker's processes are forked."""
    engine = create_engine(os.environ["DATABASE"])
    Base.metadata.create_all(engine)
    SqlStore(engine).create()
    engine.dispose()


class PaymentTask(DualWriteTask):
    """A task over our database."""

    def make_writers(self, number: int) -> WriterPool[SqlTransaction]:
        """Each process of a worker has an engine and ids of its own."""
        store = SqlStore(create_engine(os.environ["DATABASE"]))
        transactional_id = f"payments-{socket.gethostname()}-{number}"
        config = {"bootstrap.servers": os.environ["KAFKA"], "transactional.id": transactional_id}
        return WriterPool(store, config, size=1)


@app.task(base=PaymentTask, name="payments.pay")  # of the same name in the worker and in a script
def pay(txn: Transaction[SqlTransaction], customer: str, cents: int) -> int:
    """When Celery acknowledges this, both are committed."""
    payment = Payment(customer=customer, cents=cents)
    txn.session.add(payment)
    txn.session.flush()
    txn.send("payments", json.dumps({"customer": customer, "cents": cents}).encode(), customer.encode())
    return payment.id


if __name__ == "__main__":
    pay.delay(sys.argv[1], int(sys.argv[2]))
