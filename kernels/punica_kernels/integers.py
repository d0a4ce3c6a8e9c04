"""Rounding of sizes."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def next_power_of_two(n: int) -> int:
    """The least power of two that is not below n, which is at least 1."""
    return 1 << (n - 1).bit_length()
