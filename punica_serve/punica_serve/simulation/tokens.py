"""The tokens of simulated streams: a function of seed and position alone, as in the real engine.

So a request that moved continues as if it had stayed, and a stream can be audited given its seed.
"""

#: Difference between tokens at neighbouring positions. It is odd, so gaps and repeats are visible.
TOKEN_STRIDE = 7_919
#: Difference between the first tokens of neighbouring seeds.
_SEED_STRIDE = 2_654_435_761


def first_token(seed: int | None) -> int:
    """The token at position 0, before reduction modulo the vocabulary's size, which must be the last operation."""
    return (seed or 0) * _SEED_STRIDE % (1 << 31)


def token_at(seed: int | None, position: int, vocab_size: int) -> int:
    """The token id at a position of a stream."""
    return (first_token(seed) + position * TOKEN_STRIDE) % vocab_size
