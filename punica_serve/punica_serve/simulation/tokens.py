"""The tokens of simulated streams: a function of seed and position alone, as a real engine's are.

So a request that moved goes on as if it had stayed, and whoever knows the seed can audit its stream.
"""

#: Between the tokens of neighbouring positions: odd, and so a gap or a repeat shows in any vocabulary.
TOKEN_STRIDE = 7_919
#: Between the first tokens of neighbouring seeds.
_SEED_STRIDE = 2_654_435_761


def first_token(seed: int | None) -> int:
    """What positions count from; reduce it by the vocabulary's size last."""
    return (seed or 0) * _SEED_STRIDE % (1 << 31)


def token_at(seed: int | None, position: int, vocab_size: int) -> int:
    """The token id at a position of a stream."""
    return (first_token(seed) + position * TOKEN_STRIDE) % vocab_size
