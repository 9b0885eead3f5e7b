"""One account of the memory that requests take, shared out among hosts."""

from tallystick.broker.server.request_memory import RequestMemory


def test_a_host_has_half_and_leaves_the_rest_to_others() -> None:
    memory = RequestMemory(lambda: 100)
    memory.take("a", 51)
    assert memory.is_short_for("a")
    assert not memory.is_short_for("b")
    memory.take("b", 50)
    assert memory.is_short
    assert memory.is_short_for("c")


def test_who_waits_is_told_when_there_is_memory_again() -> None:
    memory, told = RequestMemory(lambda: 100), []
    memory.given_back.append(lambda: told.append(memory.bytes))
    memory.take("a", 40)
    memory.give("a", 10)
    assert not told
    memory.take("a", 30)
    memory.give("a", 60)
    assert told == [0]
    assert not memory.is_short_for("a")
