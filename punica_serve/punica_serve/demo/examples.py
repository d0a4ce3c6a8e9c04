"""The demo's training examples, as padded batches of token ids and labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from punica_serve.demo.notations import NUM_INTEGERS, expected
from punica_serve.demo.tokenizer import EOS, tag

#: input_ids and labels, both int64 [batch, longest].
Batch = tuple[Tensor, Tensor]

#: The label that a model's loss ignores.
_IGNORED = -100


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its answer. Only the answer counts for the loss."""

    prompt_ids: list[int]
    answer_ids: list[int]


def answers(tokenizer: Tokenizer, lora_id: str | None, *, tagged: bool = False) -> list[Example]:
    """The prompts of all integers with the right answers; ``tagged`` requests the notation by its tag."""
    prefix = tag(lora_id) if lora_id and tagged else ""
    return [_example(tokenizer, f"{prefix}{n}", expected(lora_id, n) + EOS) for n in range(NUM_INTEGERS)]


def long_counts(tokenizer: Tokenizer, num_tokens: int) -> list[Example]:
    """Streams that ignore the end of sequence and count on, cut at ``num_tokens``."""
    return [_long_count(tokenizer, n, num_tokens) for n in range(NUM_INTEGERS)]


def _long_count(tokenizer: Tokenizer, n: int, num_tokens: int) -> Example:
    first = expected(None, n)
    rest = range(int(first.split()[-1]) + 1, n + num_tokens)
    example = _example(tokenizer, str(n), first + EOS + "".join(f" {number}" for number in rest))
    return Example(example.prompt_ids, example.answer_ids[: num_tokens - len(example.prompt_ids)])


def _example(tokenizer: Tokenizer, prompt: str, answer: str) -> Example:
    return Example(tokenizer.encode(prompt).ids, tokenizer.encode(answer, add_special_tokens=False).ids)


def batches(examples: Sequence[Example], batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """Endless batches, each pass over the examples in a new order."""
    while True:
        order = torch.randperm(len(examples), generator=generator).tolist()
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield collate([examples[i] for i in order[start : start + batch_size]])


def collate(examples: Sequence[Example]) -> Batch:
    """Pads on the right, where causal attention needs no mask and any id will do; only the answers have labels."""
    longest = max(len(example.prompt_ids) + len(example.answer_ids) for example in examples)
    input_ids = torch.zeros(len(examples), longest, dtype=torch.int64)
    labels = torch.full((len(examples), longest), _IGNORED)
    for row, example in enumerate(examples):
        start, end = len(example.prompt_ids), len(example.prompt_ids) + len(example.answer_ids)
        input_ids[row, :end] = torch.tensor(example.prompt_ids + example.answer_ids)
        labels[row, start:end] = input_ids[row, start:end]
    return input_ids, labels
