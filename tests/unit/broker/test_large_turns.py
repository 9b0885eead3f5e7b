"""Large requests have turns: few at a time, one of each host, nobody waits for ever [SRV-4]."""

import asyncio

import pytest
from tests.support.memory_broker import on_a_loop

from tallystick.broker.server.request_memory import TURNS_MAX, LargeRequestTurn, RequestMemory


class Hosts:
    """Requests that have their turn until they are told to end it."""

    def __init__(self, memory: RequestMemory) -> None:
        self.memory = memory
        self.begun: list[str] = []
        self.turns: dict[str, LargeRequestTurn] = {}
        self.ends: dict[str, asyncio.Event] = {}

    async def start(self, name: str) -> "asyncio.Task[None]":
        self.ends[name] = asyncio.Event()
        task = asyncio.ensure_future(self._work(name))
        await settled()
        return task

    async def _work(self, name: str) -> None:
        async with self.memory.turn(name.rstrip("0123456789")) as turn:
            self.begun.append(name)
            self.turns[name] = turn
            await self.ends[name].wait()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def make_memory() -> RequestMemory:
    return RequestMemory(lambda: 1_000)


@on_a_loop
async def test_few_are_worked_on_at_a_time_and_one_of_each_host() -> None:
    hosts = Hosts(make_memory())
    for name in ("a1", "a2", "b1", "c1"):
        await hosts.start(name)
    assert hosts.begun == ["a1", "b1"]
    assert len(hosts.begun) == TURNS_MAX
    await hosts.end("b1")
    assert hosts.begun == ["a1", "b1", "c1"]
    await hosts.end("a1")
    assert hosts.begun[-1] == "a2"


@on_a_loop
async def test_a_host_with_very_many_waits_behind_one_with_a_single_request() -> None:
    hosts = Hosts(make_memory())
    for name in ("a1", "b1", "a2", "a3", "b2", "c1"):
        await hosts.start(name)
    await hosts.end("a1")
    await hosts.end("b1")
    await hosts.end("a2")
    assert hosts.begun == ["a1", "b1", "a2", "b2", "c1"]


@pytest.mark.parametrize("who", ["a1", "a2"], ids=["worked on", "waiting"])
@on_a_loop
async def test_a_client_that_leaves_holds_nothing(who: str) -> None:
    memory = make_memory()
    hosts = Hosts(memory)
    tasks = {name: await hosts.start(name) for name in ("a1", "a2", "a3")}
    tasks[who].cancel()
    await settled()
    for name in ("a1", "a2", "a3"):
        await hosts.end(name)
    assert hosts.begun == [name for name in ("a1", "a2", "a3") if name == "a1" or name != who]
    assert not memory.has_large_of("a")


@on_a_loop
async def test_a_turn_that_is_granted_to_a_client_that_leaves_is_the_next_ones() -> None:
    hosts = Hosts(make_memory())
    await hosts.start("a1")
    leaving = await hosts.start("a2")
    await hosts.start("a3")
    hosts.ends["a1"].set()
    hosts.turns["a1"].end()  # a2 has the turn, and has not run since
    leaving.cancel()
    await settled()
    assert hosts.begun == ["a1", "a3"]


@on_a_loop
async def test_what_waits_for_other_clients_gives_its_turn_back_once() -> None:
    hosts = Hosts(make_memory())
    await hosts.start("a1")
    hosts.turns["a1"].end()
    await hosts.start("a2")
    await hosts.start("a3")
    assert hosts.begun == ["a1", "a2"]
    await hosts.end("a1")
    assert hosts.begun == ["a1", "a2"]


@on_a_loop
async def test_none_begins_while_there_is_no_room_for_answers() -> None:
    has_room = False
    hosts = Hosts(memory := RequestMemory(lambda: 1_000, lambda: has_room))
    await hosts.start("a1")
    assert hosts.begun == []
    has_room = True
    memory.grant_turns()
    await settled()
    assert hosts.begun == ["a1"]


@on_a_loop
async def test_what_is_decoded_counts_until_the_turn_ends() -> None:
    memory = make_memory()
    async with memory.turn("a", 400) as turn:
        assert memory.used_bytes == 400
        turn.end()
        assert memory.used_bytes == 0
    assert memory.used_bytes == 0


@on_a_loop
async def test_who_may_receive_again_is_told_when_a_turn_ends_early() -> None:
    memory, told = make_memory(), list[bool]()
    memory.release_listeners.append(lambda: told.append(memory.has_large_of("a")))
    memory.acquire("a", 900)  # bytes of requests that wait for other clients
    async with memory.turn("a") as turn:
        assert told == []
        turn.end()
        assert told == [False]
