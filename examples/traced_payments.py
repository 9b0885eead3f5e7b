"""A payment as one trace, from the request to the program that bills it.

    $ pip install '.[otel,sql]' opentelemetry-sdk
    $ python examples/traced_payments.py localhost:9092 sqlite:///payments.db

It prints each span as JSON. In your programs the exporter is your collector's, and `opentelemetry-instrument`
may set it up instead: then only what is marked "yours" below remains.
"""

import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from sqlalchemy import create_engine, text

from tallystick import Consumer, TopicPartition
from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.otel import TallystickInstrumentor, process

tracer = trace.get_tracer("payments")


def pay(writer: DualWriter, amount: int) -> None:
    """Yours: a row and a record, committed together, in the trace of a request."""
    with tracer.start_as_current_span("POST /payments"), writer.transaction() as txn:
        txn.session.execute(text("INSERT INTO payments VALUES (:amount)"), {"amount": amount})
        txn.send("payments", str(amount).encode())


def bill(bootstrap_servers: str) -> None:
    """Yours: the consumer's side of the same trace."""
    config = {
        "bootstrap.servers": bootstrap_servers,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition("payments", 0)])
        record = next(iter(consumer))
        with process(record) as span:
            span.set_attribute("billing.amount", int(record.value or b"0"))


def main(bootstrap_servers: str, database_url: str) -> None:
    """Pay once, and bill it."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS payments (amount INTEGER)"))
    store = SqlStore(engine)
    store.create()
    config = {"bootstrap.servers": bootstrap_servers, "transactional.id": "payments-1"}
    with DualWriter(store, config) as writer:
        writer.recover()
        pay(writer, 350)
    bill(bootstrap_servers)
    engine.dispose()


if __name__ == "__main__":
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    trace.set_tracer_provider(provider)
    TallystickInstrumentor().instrument()
    main(*sys.argv[1:])
