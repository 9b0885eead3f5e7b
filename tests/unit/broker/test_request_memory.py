"""One account of the memory that requests take, shared out among hosts."""

from tallystick.broker.server.request_memory import RequestMemory


def test_a_host_has_half_and_leaves_the_rest_to_others() -> None:
    memory = RequestMemory(lambda: 100)
    memory.acquire("a", 51)
    assert memory.is_short_for("a")
    assert not memory.is_short_for("b")
    memory.acquire("b", 50)
    assert memory.is_short
    assert memory.is_short_for("c")


def test_who_waits_is_told_when_there_is_memory_again() -> None:
    memory, told = RequestMemory(lambda: 100), []
    memory.release_listeners.append(lambda: told.append(memory.used_bytes))
    memory.acquire("a", 40)
    memory.release("a", 10)
    assert not told
    memory.acquire("a", 30)
    memory.release("a", 60)
    assert told == [0]
    assert not memory.is_short_for("a")
