"""The data directories of brokers, with the room that is left on their volumes (KIP-113, KIP-827)."""

from collections.abc import Collection, Mapping
from typing import Final

from tallystick.admin.admin_call import AdminCall, Answers, gather_answers
from tallystick.client.errors import ClientError, build_broker_error
from tallystick.kernel.value import Value
from tallystick.protocol.messages.topics.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)

_UNKNOWN: Final = -1  # of a broker older than KIP-827, and of a directory that it cannot use


class BrokerDirectory(Value, kw_only=True):
    """One data directory of a broker.

    failure       why the broker cannot use it; None if it can
    total_bytes   of its volume; None if the broker does not tell
    usable_bytes  of these, what the broker may still write; None if the broker does not tell
    topic_bytes   size of each topic in it, if the call requested sizes
    """

    path: str
    failure: ClientError | None = None
    total_bytes: int | None = None
    usable_bytes: int | None = None
    topic_bytes: Mapping[str, int] = {}


async def describe(
    call: AdminCall, brokers: Collection[int] | None, *, sizes: bool
) -> Answers[int, tuple[BrokerDirectory, ...]]:
    """Return the directories of each broker, by its id."""
    request = DescribeLogDirsRequest(topics=None if sizes else ())

    async def ask(node_id: int) -> tuple[BrokerDirectory, ...]:
        answer = await call.send_to_broker(
            node_id, request, DescribeLogDirsResponse, lambda response: response.error_code
        )
        return tuple(_read_result(node_id, each) for each in answer.results)

    node_ids = await call.list_brokers(None if brokers is None else sorted(brokers))
    return await gather_answers(node_ids, ask)


def _read_result(node_id: int, result: DescribeLogDirsResult) -> BrokerDirectory:
    failure = None
    if result.error_code:
        subject = f"{result.log_dir} of broker {node_id}"
        failure = build_broker_error("DescribeLogDirs", subject, result.error_code)
    return BrokerDirectory(
        path=result.log_dir,
        failure=failure,
        total_bytes=None if result.total_bytes == _UNKNOWN else result.total_bytes,
        usable_bytes=None if result.usable_bytes == _UNKNOWN else result.usable_bytes,
        topic_bytes={
            topic.name: sum(each.partition_size for each in topic.partitions) for topic in result.topics
        },
    )
