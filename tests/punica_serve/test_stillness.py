from punica_serve.stillness import Stillness


def test_a_value_that_moves_never_stands_still() -> None:
    stillness = Stillness(0, num_looks=2)
    assert not any(stillness.look(value) for value in (1, 1, 2, 2, 3, 3))


def test_equal_looks_are_counted_from_the_value_it_began_with() -> None:
    stillness = Stillness(0, num_looks=3)
    assert [stillness.look(0) for _ in range(4)] == [False, False, True, True]


def test_a_change_starts_the_count_over() -> None:
    stillness = Stillness(0, num_looks=2)
    assert [stillness.look(value) for value in (0, 1, 1, 1)] == [False, False, False, True]
