import pytest

from punica_serve.numbers import counted, limit


@pytest.mark.parametrize(("count", "said"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs")])
def test_one_is_no_plural(count: int, said: str) -> None:
    assert counted(count, "GPU") == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (0.0, "0"),
        (10.0, "10"),
        (0.01, "0.01"),
        (-2.0, "-2"),
        ((1 << 31) - 1, "2147483647"),
        (10**19, f"{10**19}"),
    ],
)
def test_a_limit_is_said_to_the_last_digit(value: float, said: str) -> None:
    assert limit(value) == said
