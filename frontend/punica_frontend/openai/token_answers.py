"""Answers of /tokenize and /detokenize, as vLLM has them."""

import msgspec


class Tokens(msgspec.Struct, frozen=True):
    count: int
    #: The most tokens of prompt plus answer.
    max_model_len: int
    tokens: list[int]
    #: Each token's own text, if requested.
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str
