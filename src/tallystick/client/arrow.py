"""Records as an Arrow batch, under the column names of Spark's Kafka source. pyarrow is loaded when needed.

key, value      binary, null where a record has none
topic           string
partition       int32
offset          int64
timestamp       milliseconds, UTC
timestampType   int32: 0 set by the producer, 1 by the broker
headers         list of (key: string, value: binary)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tallystick import _lazy
from tallystick.client.errors import NotSupported
from tallystick.client.reading import ConsumerRecord

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_FIELDS: Final = len(ConsumerRecord._fields)


def arrow_batch(records: Sequence[ConsumerRecord]) -> "RecordBatch":
    """One row a record, in their order.

    Raises: NotSupported without pyarrow, which `pip install tallystick[arrow]` brings.
    Cost: about 400 ns a record.
    """
    try:
        pa = _lazy.load("pyarrow")
    except ImportError as exc:
        raise NotSupported("Arrow batches", "pyarrow (pip install tallystick[arrow])") from exc
    columns = list(zip(*records, strict=True)) if records else [()] * _FIELDS
    topic, partition, offset, timestamp, timestamp_type, key, value, headers, _ = columns
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    arrays = {
        "key": pa.array(key, pa.binary()),
        "value": pa.array(value, pa.binary()),
        "topic": pa.array(topic, pa.string()),
        "partition": pa.array(partition, pa.int32()),
        "offset": pa.array(offset, pa.int64()),
        "timestamp": pa.array(timestamp, pa.timestamp("ms", tz="UTC")),
        "timestampType": pa.array(list(map(int, timestamp_type)), pa.int32()),
        "headers": pa.array(headers, pa.list_(header)),
    }
    return pa.RecordBatch.from_pydict(arrays)
