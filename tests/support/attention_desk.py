"""A KvCache full of an earlier owner's NaN, and attention over what its sequences wrote."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.cuda_attention import (
    DEFAULT_OPTIONS,
    AttentionOptions,
    attention_sections,
    make_attentions,
)
from punica_serve.engine.cuda.graph_runner import PlannedAttention
from punica_serve.engine.cuda.step_input_buffer import StepInputBuffer
from punica_serve.paging.page_rule import first_kept_page
from punica_serve.protocol import Request, SamplingParams
from tiny_config import tiny_config

LAYERS, HEADS, PAGE_SIZE, NUM_PAGES = 2, 8, 16, 2500


def attention_model(kv_heads: int, head_dim: int, window: int | None = None) -> ModelConfig:
    return tiny_config(
        hidden_size=HEADS * head_dim,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=1024,
        windows=(window,) * LAYERS,
    )


class AttentionDesk:
    """A KvCache whose pages hold what the sequences wrote and NaN everywhere else, also where pages were given back."""

    def __init__(
        self, kv_heads: int, device: str, dtype: torch.dtype, head_dim: int, window: int | None = None
    ) -> None:
        self.model = attention_model(kv_heads, head_dim, window)
        self.device = torch.device(device)
        self.cache = KvCache(self.model, num_pages=NUM_PAGES, page_size=PAGE_SIZE, dtype=dtype, device=self.device)
        self.cache.pool.fill_(torch.nan)
        self._free: Iterator[int] = iter(torch.randperm(NUM_PAGES).tolist())

    def attention(self, bucket: BatchBucket, options: AttentionOptions = DEFAULT_OPTIONS) -> "StagedAttention":
        buffer = StepInputBuffer(attention_sections(self.cache, self.model, bucket, options), self.device)
        attentions = make_attentions(self.cache, self.model, {bucket: buffer}, options)
        return StagedAttention(attentions[bucket], buffer)

    def sequence(self, length: int, num_cached: int) -> Sequence:
        """``length`` tokens, all of whose keys and values are there, ``num_cached`` of them from earlier steps."""
        sequence = Sequence.of(Request("r", 0, (1,) * length, SamplingParams()), 2048)
        sequence.num_cached = num_cached
        sequence.pages = [next(self._free) for _ in range(self.cache.pages_for(length + 1))]
        positions = torch.arange(length)
        pages = torch.tensor(sequence.pages)[positions // PAGE_SIZE].to(self.device)
        pool, offsets = self.cache.pool, (positions % PAGE_SIZE).to(self.device)
        for layer in range(LAYERS):
            fresh = torch.randn(2, length, *pool.shape[-2:], device=self.device).to(pool.dtype)
            pool[pages, layer, 0, offsets], pool[pages, layer, 1, offsets] = fresh
        pool[sequence.pages[: self._num_given_back(num_cached)]] = torch.nan
        return sequence

    def sharing(self, lengths: list[int], num_pages: int) -> list[Sequence]:
        """Sequences that decode behind the same first pages, those of the first one."""
        first, *others = sequences = [self.sequence(length, length - 1) for length in lengths]
        for sequence in others:
            self.cache.pool[sequence.pages[:num_pages]] = torch.nan
            sequence.pages[:num_pages] = first.pages[:num_pages]
        return sequences

    def _num_given_back(self, num_cached: int) -> int:
        return first_kept_page(num_cached, PAGE_SIZE, self.cache.window)

    def step(self, chunk: tuple[int, int] | None, decode_lengths: list[int]) -> StepPlan:
        """``chunk``: the tokens that a prefill runs."""
        return self.step_of([chunk] if chunk else [], decode_lengths)

    def step_of(self, chunks: list[tuple[int, int]], decode_lengths: list[int]) -> StepPlan:
        """``chunks``: the tokens that prefills run."""
        decodes = tuple(self.sequence(length, length - 1) for length in decode_lengths)
        sequences = (self.sequence(end, start) for start, end in chunks)
        prefills = (PrefillChunk(each, *bounds, is_last=True) for each, bounds in zip(sequences, chunks, strict=True))
        return StepPlan(tuple(prefills), decodes)

    def q(self, bucket: BatchBucket) -> Tensor:
        q = torch.randn(bucket.num_rows, HEADS, self.model.head_dim, device=self.device)
        return q.to(self.cache.pool.dtype)

    def reference(self, layer: int, q: Tensor, sequence: Sequence, length: int) -> Tensor:
        """q: the last rows of ``length`` tokens, [rows, heads, head_dim] -> the same in float32."""
        first = self._num_given_back(length - len(q))
        pages = sequence.pages[first : self.cache.pages_for(length)]
        repeat = HEADS // self.model.num_key_value_heads
        k, v = (
            side[pages].flatten(0, 1)[: length - first * PAGE_SIZE].float().repeat_interleave(repeat, 1)
            for side in self.cache.layer(layer)
        )
        scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) / self.model.head_dim**0.5
        rows = torch.arange(length - len(q), length, device=self.device)[:, None]
        tokens = torch.arange(first * PAGE_SIZE, length, device=self.device)
        hidden = (tokens > rows) | (tokens <= rows - (self.cache.window or length))
        scores = scores.masked_fill(hidden, -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double()).float()

    def check(self, step: StepPlan, bucket: BatchBucket, layer: int, q: Tensor, out: Tensor) -> None:
        """All rows that do not pad."""
        out = out.view_as(q).float()
        tolerance = 1e-3 if q.dtype == torch.float32 else 2e-2
        end = bucket.num_prefill_rows
        for chunk in reversed(step.prefills):
            rows = slice(end - chunk.num_tokens, end)
            end -= chunk.num_tokens
            expected = self.reference(layer, q[rows], chunk.sequence, chunk.end)
            torch.testing.assert_close(out[rows], expected, atol=tolerance, rtol=tolerance)
        for row, sequence in enumerate(step.decodes, start=bucket.num_prefill_rows):
            expected = self.reference(layer, q[row : row + 1], sequence, sequence.num_cached + 1)
            torch.testing.assert_close(out[row : row + 1], expected, atol=tolerance, rtol=tolerance)


class StagedAttention(NamedTuple):
    """An attention and the words that it is in."""

    attention: PlannedAttention
    buffer: StepInputBuffer

    @property
    def slot_mapping(self) -> Tensor:
        return self.attention.slot_mapping

    def plan(self, step: StepPlan) -> None:
        self.attention.plan(step)
        self.buffer.copy_to_device()

    def run(self, layer: int, q: Tensor) -> Tensor:
        return self.attention.run(layer, q)
