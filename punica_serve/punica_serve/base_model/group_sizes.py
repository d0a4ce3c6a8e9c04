"""The sizes of tensor-parallel groups that divide a model. Free of torch."""

from collections.abc import Iterator
from typing import Protocol

from punica_serve.errors import ConfigError

#: Tokens are divided in blocks: one counter of the sampling noise is four tokens, 16 bytes of logits are eight.
VOCABULARY_BLOCK = 8
#: No host has more GPUs than that.
_MAX_SIZE = 64


class Divisible(Protocol):
    """The sizes of a model that a group divides."""

    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


def check_group_size(model: Divisible, size: int) -> None:
    """Raises ConfigError, with all that does not divide and the sizes that would work."""
    reasons = list(_reasons_against(model, size))
    if not reasons:
        return
    working = [str(other) for other in range(1, _MAX_SIZE + 1) if not any(_reasons_against(model, other))]
    raise ConfigError(
        f"a group of {size} ranks can't divide this model: {'; '.join(reasons)}. Groups of {', '.join(working)} can",
        param="runner.tensor_parallel",
    )


def check_lora_division(hidden_size: int, size: int) -> None:
    """Raises ConfigError if ranks can't divide LoRA's A by the inputs of a layer."""
    if hidden_size % size:
        message = f"{size} ranks can't divide LoRA's A: `hidden_size` of {hidden_size} is no multiple of {size}"
        raise ConfigError(f"{message}; drop `engine.divide_lora_from`", param="engine.divide_lora_from")


def _reasons_against(model: Divisible, size: int) -> Iterator[str]:
    for name in ("num_attention_heads", "intermediate_size"):
        if (count := getattr(model, name)) % size:
            yield f"`{name}` of {count} is no multiple of {size}"
    heads = model.num_key_value_heads
    if heads % size and size % heads:
        yield f"`num_key_value_heads` of {heads} is neither a multiple nor a divisor of {size}"
    if -(-model.vocab_size // VOCABULARY_BLOCK) < size:
        yield f"`vocab_size` of {model.vocab_size} has fewer than {VOCABULARY_BLOCK} tokens for each rank"
