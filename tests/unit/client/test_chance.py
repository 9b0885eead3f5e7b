import random

from tallystick.client.net.backoff import shuffle, uniform


def test_what_a_program_draws_after_its_seed_is_its_own() -> None:
    random.seed(1)
    alone = random.random()
    random.seed(1)
    drawn, order = uniform(), [1, 2, 3]
    shuffle(order)
    assert random.random() == alone
    assert 0 <= drawn < 1
    assert sorted(order) == [1, 2, 3]
