"""Checks that an engine can run a request at all, for callers without a frontend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.errors import ContextOverflow, InvalidRequest
from punica_serve.numbers import counted
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.protocol.sampling_ranges import RANGES

if TYPE_CHECKING:
    from punica_serve.engine.adapters.lora_pool import LoraPool


@dataclass(frozen=True, slots=True)
class RequestCheck:
    """The limits of one engine."""

    vocab_size: int
    #: Tokens of the longest request.
    context: int
    #: Tokens that the whole KvCache holds.
    capacity: int
    lora_pool: "LoraPool"

    @property
    def longest(self) -> int:
        """Tokens of the longest request that never has to move."""
        return min(self.context, self.capacity)

    def __call__(self, request: Request, *, may_move: bool) -> None:
        """Raises InvalidRequest, with the field, for a request that could never finish here.

        One that ``may_move`` goes on for as long as it fits the KvCache, and then on a larger device.
        """
        if not request.prompt_ids:
            raise InvalidRequest("the prompt is empty; give at least one token", param="prompt")
        self._check_vocabulary("prompt", request.prompt_ids)
        self._check_vocabulary("generated_ids", request.generated_ids)
        self._check_vocabulary("stop_token_ids", request.sampling.stop_token_ids)
        check_sampling(request.sampling)
        if (request.sampling.logprobs or 0) > self.vocab_size:
            raise InvalidRequest(f"`logprobs` exceeds the vocabulary of {self.vocab_size}", param="logprobs")
        self._check_length(request, self.context if may_move else self.longest)
        if request.adapter is not None:
            self._check_adapter(request.adapter)

    def _check_adapter(self, adapter: AdapterRef) -> None:
        if reason := self.lora_pool.limits.why_not(adapter.ranks):
            raise InvalidRequest(reason, param="lora_id")
        if not self.lora_pool.could_fit(pages_needed(adapter.ranks)):
            raise InvalidRequest(
                "the adapter is larger than the LoRA pool; raise `engine.num_lora_pages`", param="lora_id"
            )

    def _check_vocabulary(self, field: str, token_ids: Sequence[int]) -> None:
        bad = next((token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size), None)
        if bad is not None:
            raise InvalidRequest(
                f"`{field}` holds token id {bad}, which is outside the vocabulary of {self.vocab_size}", param=field
            )

    def _check_length(self, request: Request, longest: int) -> None:
        num_prompt, max_tokens = len(request.prompt_ids), request.sampling.max_tokens
        most = min(longest, self.capacity)
        if num_prompt >= most:
            raise ContextOverflow(
                f"the prompt has {num_prompt} tokens; with its answer it may have {most}; "
                f"shorten it{self._or_more_pages(most)}",
                param="prompt",
            )
        if num_prompt + max_tokens > longest:
            raise ContextOverflow(
                f"`max_tokens` is {max_tokens}, but beside a prompt of {counted(num_prompt, 'token')} there is room "
                f"for {longest - num_prompt}; lower it{self._or_more_pages(longest)}",
                param="max_tokens",
            )
        if len(request.generated_ids) >= max_tokens:
            raise InvalidRequest(f"the request has its {counted(max_tokens, 'token')} already", param="generated_ids")

    def _or_more_pages(self, most: int) -> str:
        """A hint for the error where the KvCache is the limit and not the model."""
        fix = f", or raise `engine.num_kv_pages`: the KvCache holds {self.capacity} tokens"
        return fix if most < self.context else ""


def check_sampling(params: SamplingParams) -> None:
    """Raises InvalidRequest for the first parameter that is out of range."""
    for name, allowed in RANGES.items():
        value = getattr(params, name)
        if value is not None and not allowed.holds(value):
            raise InvalidRequest(f"`{name}` is {value}; it must be finite, {allowed}", param=name)
    if params.min_tokens > params.max_tokens:
        message = f"`min_tokens` is {params.min_tokens}, more than max_tokens, which is {params.max_tokens}"
        raise InvalidRequest(message, param="min_tokens")
