from punica_kernels.integers import ceil_div, next_power_of_two


def test_division_rounds_up() -> None:
    assert [ceil_div(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_a_power_of_two_is_its_own_next() -> None:
    assert [next_power_of_two(n) for n in (1, 2, 3, 4, 5, 1000)] == [1, 2, 4, 4, 8, 1024]
