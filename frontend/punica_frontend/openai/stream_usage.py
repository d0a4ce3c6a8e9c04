"""The usage in a stream's chunks, according to ``stream_options``. Pure."""

from dataclasses import dataclass

import msgspec

from punica_frontend.generation.answers import Frame, TokenUsage, usage
from punica_frontend.generation.choices import Choices
from punica_frontend.openai.sampling_body import SamplingBody

#: A chunk's usage: absent unless requested; then null in all chunks but the last. With vLLM's
#: ``continuous_usage_stats`` it is never null.
ChunkUsage = TokenUsage | msgspec.UnsetType | None


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """The usage fields of one stream's chunks."""

    choices: Choices
    #: Whether a last chunk has the usage of the whole stream.
    is_included: bool
    #: Whether each chunk has its choice's usage so far, as in vLLM.
    is_continuous: bool

    @classmethod
    def of(cls, body: SamplingBody, choices: Choices) -> "StreamUsage":
        options = body.stream_options
        return cls(choices, body.includes_usage, bool(options and options.continuous_usage_stats))

    def before(self, index: int, frame: Frame) -> ChunkUsage:
        """Returns the usage for a chunk before the tokens of ``frame``; ``index`` is the choice's."""
        return self.so_far(index, frame.index)

    def after(self, index: int, frame: Frame) -> ChunkUsage:
        """Returns the usage for a chunk with the tokens of ``frame``; ``index`` is the choice's."""
        return self.so_far(index, frame.index + len(frame.token_ids))

    def so_far(self, index: int, num_generated_tokens: int) -> ChunkUsage:
        """Returns the usage for a chunk that ends with this number of tokens; ``index`` is the choice's."""
        if not self.is_included:
            return msgspec.UNSET
        if not self.is_continuous:
            return None
        return usage(len(self.choices.plans[index].request.prompt_ids), num_generated_tokens)
