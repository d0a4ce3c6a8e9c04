"""How long a request may be and which token ids it may hold, by the model and by what the cluster's GPUs can take."""

import reprlib
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import msgspec

from punica_frontend.api.schemas import GenerateFields
from punica_serve.errors import ContextOverflow, InvalidRequest
from punica_serve.numbers import counted
from punica_serve.protocol import Limits


def answer_room(
    fields: GenerateFields,
    num_prompt_tokens: int,
    max_context: int,
    limits: Limits | None,
    *,
    last_request_tokens: int | None = None,
    default: int | None = None,
) -> int:
    """Returns the most tokens that the answer may have. ``default`` is the model's own limit; None means all the room.

    ``last_request_tokens`` bound an answer whose length nobody asked for, also while no GPU is there: it waits for one,
    and must fit the one that comes back.
    Raises ContextOverflow if there is no room, and InvalidRequest if ``min_tokens`` does not fit.
    """
    most, why = max_context, ""
    if limits and limits.max_request_tokens is not None and limits.max_request_tokens < most:
        most, why = limits.max_request_tokens, " here, as much as the cluster's largest KvCache holds"
    # OpenAI's wording: LiteLLM recognizes an overflow by this text, not by its code.
    limit = f"this model's maximum context length is {most} tokens{why}"
    room = most - num_prompt_tokens
    if room < 1:
        param = "prompt" if fields.input_ids is None else "input_ids"
        message = f"`{param}` has {num_prompt_tokens} tokens, but {limit}, including the answer; shorten it"
        raise ContextOverflow(message, param=param)
    min_tokens = fields.min_tokens or 0
    unasked = room
    if last_request_tokens is not None and last_request_tokens > num_prompt_tokens:
        unasked = min(room, last_request_tokens - num_prompt_tokens)
    max_tokens = fields.max_tokens or min(room, max(min(unasked, default or unasked), min_tokens))
    if max_tokens > room:
        prompt = counted(num_prompt_tokens, "token")
        message = f"`max_tokens` is {max_tokens}, but {limit}, which leaves {room} after the prompt's {prompt}"
        raise ContextOverflow(message, param="max_tokens")
    if min_tokens > max_tokens:
        message = f"`min_tokens` is {min_tokens}, more than the {max_tokens} tokens that the answer may have"
        raise InvalidRequest(message, param="min_tokens")
    return max_tokens


def check_vocabulary(token_ids: Sequence[int], param: str, vocab_size: int) -> None:
    """Raises InvalidRequest for the first id outside the vocabulary."""
    try:
        msgspec.convert(token_ids, _ids_below(vocab_size))  # a fifth of a loop's time
    except msgspec.ValidationError:
        _refuse_first_outside(token_ids, param, vocab_size)


@cache
def _ids_below(vocab_size: int) -> Any:
    """The type of lists of a vocabulary's ids."""
    return list[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]]


def _refuse_first_outside(token_ids: Sequence[int], param: str, vocab_size: int) -> None:
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            message = (
                f"`{param}.{index}`: {reprlib.repr(token_id)} is not a token id; valid ids are 0 to {vocab_size - 1}"
            )
            raise InvalidRequest(message, param=f"{param}.{index}")
