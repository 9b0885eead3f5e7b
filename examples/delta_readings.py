"""A collector of meter readings: small batches into a Delta table, and a record for each reading.

    $ python examples/delta_readings.py localhost:9092 ./readings kitchen=21.5 cellar=12 attic=19.5

Every three readings are one version of the table and one Kafka transaction. Kill it whenever you like: the
next start brings what was in doubt to the end that the table's log has.
"""

import sys

import pyarrow as pa
from deltalake import DeltaTable

from tallystick.dualwrite import DeltaStore, DualWriter

COLUMNS = pa.schema([("meter", pa.string()), ("value", pa.float64())])
BATCH = 3


def main(bootstrap_servers: str, table: str, *readings: str) -> None:
    """Recover, then write these readings."""
    if not DeltaTable.is_deltatable(table):
        DeltaTable.create(table, schema=COLUMNS)
    config = {"bootstrap.servers": bootstrap_servers, "transactional.id": "readings"}
    with DualWriter(DeltaStore(table), config) as writer:
        print(writer.recover(), flush=True)
        for begin in range(0, len(readings), BATCH):
            batch = readings[begin : begin + BATCH]
            pairs = [reading.split("=") for reading in batch]
            with writer.transaction() as txn:
                txn.handle.append([{"meter": meter, "value": float(value)} for meter, value in pairs])
                for meter, value in pairs:
                    txn.send("readings", value.encode(), meter.encode())
            print(*batch, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
