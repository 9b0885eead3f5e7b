"""AddPartitionsToTxn (24): add partitions that a transaction is about to write to.

Versions 0 to 3 are for producers; from 4 on brokers send many transactions at once, and may only verify
(KIP-890). Clients of 4.0 and newer do not need it under transaction version 2: their Produce requests add the
partitions.
"""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT16, INT32, INT64, STRING, array, message, struct, wire


@struct
class AddPartitionsToTxnTopic:
    name: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: Annotated[str, wire(STRING, "4+")] = ""
    producer_id: Annotated[int, wire(INT64, "4+")] = 0
    producer_epoch: Annotated[int, wire(INT16, "4+")] = 0
    verify_only: Annotated[bool, wire(BOOL, "4+")] = False
    topics: Annotated[tuple[AddPartitionsToTxnTopic, ...], wire(array(AddPartitionsToTxnTopic), "4+")] = ()


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    """One transaction in the fields named `v3_and_below_`, or many in `transactions`."""

    transactions: Annotated[
        tuple[AddPartitionsToTxnTransaction, ...], wire(array(AddPartitionsToTxnTransaction), "4+")
    ] = ()
    v3_and_below_transactional_id: Annotated[str, wire(STRING, "0-3")] = ""
    v3_and_below_producer_id: Annotated[int, wire(INT64, "0-3")] = 0
    v3_and_below_producer_epoch: Annotated[int, wire(INT16, "0-3")] = 0
    v3_and_below_topics: Annotated[
        tuple[AddPartitionsToTxnTopic, ...], wire(array(AddPartitionsToTxnTopic), "0-3")
    ] = ()


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: Annotated[int, wire(INT32, "0+")]
    partition_error_code: Annotated[int, wire(INT16, "0+")] = 0


@struct
class AddPartitionsToTxnTopicResult:
    name: Annotated[str, wire(STRING, "0+")]
    results_by_partition: Annotated[
        tuple[AddPartitionsToTxnPartitionResult, ...], wire(array(AddPartitionsToTxnPartitionResult), "0+")
    ] = ()


@struct
class AddPartitionsToTxnResult:
    transactional_id: Annotated[str, wire(STRING, "4+")] = ""
    topic_results: Annotated[
        tuple[AddPartitionsToTxnTopicResult, ...], wire(array(AddPartitionsToTxnTopicResult), "4+")
    ] = ()


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    """A result per partition, under the transaction from version 4 on."""

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "4+", ignorable=True)] = 0
    results_by_transaction: Annotated[
        tuple[AddPartitionsToTxnResult, ...], wire(array(AddPartitionsToTxnResult), "4+")
    ] = ()
    results_by_topic_v3_and_below: Annotated[
        tuple[AddPartitionsToTxnTopicResult, ...], wire(array(AddPartitionsToTxnTopicResult), "0-3")
    ] = ()
