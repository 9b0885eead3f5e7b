"""What is left of the brokers' disks: a look that delays nothing, and forgets nothing that it knew."""

import asyncio
from collections.abc import Collection

from tallystick.admin.admin_call import Answers
from tallystick.admin.log_dirs import BrokerDirectory
from tallystick.client.errors import ClientError, Unreachable, build_broker_error
from tallystick.console.collect.cluster_reader import RoomReader
from tallystick.console.model.snapshot import Volume
from tallystick.kernel.codes import ErrorCode

SIZES = {"orders": 5, "__consumer_offsets": 9}
SILENT = Unreachable("b:1", "no answer")
REFUSED = build_broker_error("DescribeLogDirs", "broker 2", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


class Brokers:
    """Brokers with so many bytes left, or a reason why they do not tell."""

    def __init__(self) -> None:
        self.answers: dict[int, int | ClientError] = {}
        self.failure: ClientError | None = None
        self.asked: list[tuple[Collection[int] | None, bool]] = []

    async def describe(
        self, brokers: Collection[int] | None, *, sizes: bool
    ) -> Answers[int, tuple[BrokerDirectory, ...]]:
        self.asked.append((brokers, sizes))
        if self.failure is not None:
            raise self.failure
        chosen = {node: each for node, each in self.answers.items() if brokers is None or node in brokers}
        return Answers(
            {
                node: (make_directory(each, sizes=sizes),)
                for node, each in chosen.items()
                if isinstance(each, int)
            },
            {node: each for node, each in chosen.items() if isinstance(each, ClientError)},
        )


def make_directory(usable_bytes: int, *, sizes: bool) -> BrokerDirectory:
    return BrokerDirectory(
        path="/data",
        total_bytes=2**40,
        usable_bytes=usable_bytes,
        topic_bytes=SIZES if sizes else {},
    )


def look(reader: RoomReader) -> dict[int, int | None]:
    return {node: volume.usable_bytes for node, (volume,) in asyncio.run(reader.read()).items()}


def test_sizes_are_asked_for_where_a_disk_is_full_and_nowhere_else() -> None:
    brokers = Brokers()
    brokers.answers = {1: 2**39, 2: 0}
    volumes = asyncio.run(RoomReader(brokers.describe).read())
    assert brokers.asked == [(None, False), ([2], True)]
    assert volumes[1] == (Volume(path="/data", total_bytes=2**40, usable_bytes=2**39),)
    assert volumes[2][0].topic_bytes == {"orders": 5}


def test_a_broker_that_is_silent_once_stays_as_it_was() -> None:
    """Or a full disk would look mended whenever its broker is slow."""
    brokers = Brokers()
    reader = RoomReader(brokers.describe)
    brokers.answers = {1: 2**39, 2: 0}
    assert look(reader) == {1: 2**39, 2: 0}
    brokers.answers = {1: 2**38, 2: SILENT}
    assert look(reader) == {1: 2**38, 2: 0}
    brokers.failure = SILENT
    assert look(reader) == {1: 2**38, 2: 0}


def test_a_broker_that_refuses_or_is_gone_is_left_out() -> None:
    brokers = Brokers()
    reader = RoomReader(brokers.describe)
    brokers.answers = {1: 2**39, 2: 0, 3: 2**37}
    look(reader)
    brokers.answers = {1: 2**39, 2: REFUSED}
    assert look(reader) == {1: 2**39}
