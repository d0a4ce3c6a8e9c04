"""What /tokenize and /detokenize answer, as vLLM does."""

import msgspec


class Tokens(msgspec.Struct, frozen=True):
    count: int
    #: Tokens of prompt and answer that the model can take.
    max_model_len: int
    tokens: list[int]
    #: Each by itself, where they were asked for.
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str
