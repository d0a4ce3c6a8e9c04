"""What an engine can run at all: the last check, for callers that no frontend has checked before."""

import math
from dataclasses import dataclass

from punica_serve.engine.lora_pool import LoraPool
from punica_serve.errors import InvalidRequest
from punica_serve.lora_layout import pages_needed
from punica_serve.protocol import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class RequestCheck:
    """The limits of one engine."""

    vocab_size: int
    #: Tokens of the longest request: of the model's context and of the whole KvCache the smaller.
    longest: int
    lora_pool: LoraPool

    def __call__(self, request: Request) -> None:
        """Raises InvalidRequest, with the field, for a request that could never finish here."""
        if not request.prompt_ids:
            raise InvalidRequest("the prompt is empty; give at least one token", param="prompt")
        for token_id in (*request.prompt_ids, *request.sampling.stop_token_ids):
            if not 0 <= token_id < self.vocab_size:
                raise InvalidRequest(
                    f"token id {token_id} is outside the vocabulary of {self.vocab_size}", param="prompt"
                )
        check_sampling(request.sampling)
        if request.max_num_tokens > self.longest:
            raise InvalidRequest(
                f"prompt of {len(request.prompt_ids)} and max_tokens of {request.sampling.max_tokens} tokens exceed "
                f"the longest request of {self.longest}; shorten the prompt or lower max_tokens",
                param="max_tokens",
            )
        if request.adapter is not None and not self.lora_pool.could_fit(pages_needed(request.adapter.ranks)):
            raise InvalidRequest("the adapter is larger than the LoRA pool; raise num_lora_pages", param="lora_id")


def check_sampling(params: SamplingParams) -> None:
    """Raises InvalidRequest for the first parameter that is out of range."""
    for name, low, high in (
        ("temperature", 0.0, math.inf),
        ("top_p", 0.0, 1.0),
        ("top_k", 0, math.inf),
        ("min_p", 0.0, 1.0),
        ("repetition_penalty", 0.0, math.inf),
        ("presence_penalty", -math.inf, math.inf),
        ("frequency_penalty", -math.inf, math.inf),
        ("min_tokens", 0, params.max_tokens),
        ("max_tokens", 1, math.inf),
    ):
        value = getattr(params, name)
        if not (low <= value <= high and math.isfinite(value)):
            raise InvalidRequest(f"`{name}` is {value}; it must be finite and from {low} to {high}", param=name)
    for name in ("top_p", "repetition_penalty"):
        if getattr(params, name) == 0:
            raise InvalidRequest(f"`{name}` must be above 0", param=name)
    if params.seed is not None and not 0 <= params.seed < 1 << 64:
        raise InvalidRequest("`seed` must be an unsigned integer of 64 bits", param="seed")
