import pytest

from punica_serve.numbers import counted, gib, is_count, limit, natural_order


@pytest.mark.parametrize(("count", "said"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs")])
def test_one_is_no_plural(count: int, said: str) -> None:
    assert counted(count, "GPU") == said


def test_sizes_read_as_people_read_them() -> None:
    assert (gib(0), gib(3 << 29), gib(141 << 30)) == ("0.0 GiB", "1.5 GiB", "141.0 GiB")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (0.0, "0"),
        (10.0, "10"),
        (1e6, "1000000"),
        (0.01, "0.01"),
        (-2.0, "-2"),
        ((1 << 31) - 1, "2147483647"),
        (10**19, f"{10**19}"),
    ],
)
def test_a_limit_is_said_to_the_last_digit(value: float, said: str) -> None:
    assert limit(value) == said


def test_numbers_in_names_are_ordered_by_their_value() -> None:
    names = ["host-2/0", "host-1/10", "host-1/2", "host", "9", "a"]
    assert sorted(names, key=natural_order) == ["9", "a", "host", "host-1/2", "host-1/10", "host-2/0"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", True), ("9" * 19, True), ("9" * 20, False), ("", False), ("-1", False), ("1.5", False), ("\u0663", False)],
)
def test_counts_are_whole_and_short(text: str, expected: bool) -> None:
    assert is_count(text) is expected
