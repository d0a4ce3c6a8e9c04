"""Checks of measured points, for the models of a profile."""

from itertools import pairwise


def check_ascending(name: str, numbers: tuple[int, ...]) -> None:
    """Raises ValueError unless the numbers ascend."""
    if any(first >= second for first, second in pairwise(numbers)):
        raise ValueError(f"`{name}` must ascend")


def check_times(numbers: tuple[int, ...], ms: tuple[float, ...], name: str) -> None:
    """Times must not fall, because they are extrapolated beyond the last number and could become negative."""
    if len(ms) != len(numbers):
        raise ValueError(f"`ms` must be as long as `{name}`")
    if any(first > second for first, second in pairwise(ms)):
        raise ValueError(f"`ms` must not fall while `{name}` rises")
