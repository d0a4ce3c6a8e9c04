"""A GPU's paged attention against plain attention in float64, in a pool full of an earlier owner's NaN.

Without a GPU the same tables go through the torch implementation of Triton's kernel.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from device_waits import waits_are_errors
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_planner import PrefillChunk, StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.cuda_attention import attention_sections, make_attentions
from punica_serve.engine.cuda.graph_runner import PlannedAttention
from punica_serve.engine.cuda.step_input_buffer import StepInputBuffer
from punica_serve.protocol import Request, SamplingParams
from tiny_config import tiny_config

LAYERS, HEADS, PAGE_SIZE, NUM_PAGES = 2, 8, 16, 2500

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
#: Device, dtype and head size: those of common models, then float32 and a size that is no power of two.
GPU_KINDS = [
    pytest.param(("cuda", dtype, head_dim), marks=needs_gpu, id=f"{dtype}-{head_dim}".removeprefix("torch."))
    for dtype, head_dim in [
        (torch.bfloat16, 128),
        (torch.bfloat16, 64),
        (torch.float16, 128),
        (torch.float32, 64),
        (torch.bfloat16, 80),
    ]
]
KINDS = [pytest.param(("cpu", torch.float32, 16), id="cpu"), *GPU_KINDS]

Kind = tuple[str, torch.dtype, int]


def _model(kv_heads: int, head_dim: int) -> ModelConfig:
    return tiny_config(
        hidden_size=HEADS * head_dim,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=1024,
    )


class _Desk:
    """A KvCache whose pages hold what the sequences wrote and NaN everywhere else."""

    def __init__(self, kv_heads: int, device: str, dtype: torch.dtype, head_dim: int) -> None:
        self.model = _model(kv_heads, head_dim)
        self.device = torch.device(device)
        self.cache = KvCache(self.model, num_pages=NUM_PAGES, page_size=PAGE_SIZE, dtype=dtype, device=self.device)
        self.cache.pool.fill_(torch.nan)
        self._free: Iterator[int] = iter(torch.randperm(NUM_PAGES).tolist())

    def attention(self, bucket: BatchBucket) -> "_StagedAttention":
        buffer = StepInputBuffer(attention_sections(self.cache, self.model, bucket), self.device)
        return _StagedAttention(make_attentions(self.cache, self.model, {bucket: buffer})[bucket], buffer)

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
        return sequence

    def step(self, chunk: tuple[int, int] | None, decode_lengths: list[int]) -> StepPlan:
        """``chunk``: the tokens that a prefill runs."""
        decodes = tuple(self.sequence(length, length - 1) for length in decode_lengths)
        if chunk is None:
            return StepPlan(None, decodes)
        start, end = chunk
        return StepPlan(PrefillChunk(self.sequence(end, start), start, end, is_last=True), decodes)

    def q(self, bucket: BatchBucket) -> Tensor:
        q = torch.randn(bucket.num_rows, HEADS, self.model.head_dim, device=self.device)
        return q.to(self.cache.pool.dtype)

    def reference(self, layer: int, q: Tensor, sequence: Sequence, length: int) -> Tensor:
        """q: the last rows of ``length`` tokens, [rows, heads, head_dim] -> the same in float32."""
        pages = sequence.pages[: self.cache.pages_for(length)]
        repeat = HEADS // self.model.num_key_value_heads
        k, v = (
            side[pages].flatten(0, 1)[:length].float().repeat_interleave(repeat, 1) for side in self.cache.layer(layer)
        )
        scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) / self.model.head_dim**0.5
        rows = torch.arange(length - len(q), length, device=self.device)
        scores = scores.masked_fill(torch.arange(length, device=self.device) > rows[:, None], -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double()).float()

    def check(self, step: StepPlan, bucket: BatchBucket, layer: int, q: Tensor, out: Tensor) -> None:
        """All rows that do not pad."""
        out = out.view_as(q).float()
        tolerance = 1e-3 if q.dtype == torch.float32 else 2e-2
        if chunk := step.prefill:
            rows = slice(bucket.num_prefill_rows - chunk.num_tokens, bucket.num_prefill_rows)
            expected = self.reference(layer, q[rows], chunk.sequence, chunk.end)
            torch.testing.assert_close(out[rows], expected, atol=tolerance, rtol=tolerance)
        for row, sequence in enumerate(step.decodes, start=bucket.num_prefill_rows):
            expected = self.reference(layer, q[row : row + 1], sequence, sequence.num_cached + 1)
            torch.testing.assert_close(out[row : row + 1], expected, atol=tolerance, rtol=tolerance)


class _StagedAttention(NamedTuple):
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


def _random_lengths(count: int) -> list[int]:
    lengths: list[int] = torch.randint(1, 1001, (count,)).tolist()
    return lengths


def _plan(attention: _StagedAttention, step: StepPlan) -> None:
    """Plans, and fails where torch would make the host wait for the device."""
    if not attention.slot_mapping.is_cuda:
        attention.plan(step)
        return
    with waits_are_errors():
        attention.plan(step)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
@pytest.mark.parametrize(
    ("bucket", "chunk", "num_decodes"),
    [
        (BatchBucket(0, 1), None, 1),
        (BatchBucket(0, 8), None, 5),
        (BatchBucket(0, 32), None, 32),
        (BatchBucket(48, 0), (0, 37), 0),
        (BatchBucket(512, 0), (0, 512), 0),
        (BatchBucket(128, 7), (600, 700), 3),
        (BatchBucket(16, 31), (999, 1000), 31),
    ],
    ids=str,
)
def test_rows_attend_to_their_own_past(
    kind: Kind, kv_heads: int, bucket: BatchBucket, chunk: tuple[int, int] | None, num_decodes: int
) -> None:
    desk = _Desk(kv_heads, *kind)
    step = desk.step(chunk, _random_lengths(num_decodes))
    attention, q = desk.attention(bucket), desk.q(bucket)
    _plan(attention, step)
    for layer in range(LAYERS):
        desk.check(step, bucket, layer, q, attention.run(layer, q))


@pytest.mark.parametrize("kind", GPU_KINDS)
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_a_graph_captured_on_padding_replays_any_step_that_fits(kind: Kind, kv_heads: int) -> None:
    desk, bucket = _Desk(kv_heads, *kind), BatchBucket(64, 8)
    attention, q = desk.attention(bucket), desk.q(bucket)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        attention.plan(StepPlan(None, ()))
        attention.run(1, q)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = attention.run(1, q)
    steps = [((0, 64), 8), ((0, 1), 0), ((300, 340), 3), (None, 5), ((930, 990), 7)]
    for chunk, num_decodes in steps:
        step = desk.step(chunk, _random_lengths(num_decodes))
        q.copy_(desk.q(bucket))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            _plan(attention, step)
            graph.replay()
        torch.cuda.synchronize()
        desk.check(step, bucket, 1, q, out)
        replayed = out.clone()
        attention.run(1, q)
        rows = slice(bucket.num_prefill_rows, bucket.num_prefill_rows + num_decodes)
        assert torch.equal(out[rows], replayed[rows])


@pytest.mark.parametrize("kind", KINDS)
def test_slots_are_where_the_new_tokens_go(kind: Kind) -> None:
    desk, bucket = _Desk(8, *kind), BatchBucket(4, 3)
    attention = desk.attention(bucket)
    step = desk.step((15, 18), [17])
    _plan(attention, step)
    assert step.prefill
    first, second = step.prefill.sequence.pages[:2]
    expected = [-1, first * 16 + 15, second * 16, second * 16 + 1, step.decodes[0].pages[1] * 16, -1, -1]
    assert attention.slot_mapping.tolist() == expected


def test_a_cache_of_many_pages_makes_words_for_the_fullest_step_and_no_more() -> None:
    model, bucket = _model(2, 16), BatchBucket(16, 2)
    longest = model.max_position_embeddings
    cache = KvCache(model, num_pages=20_000, page_size=1, dtype=torch.float32, device=torch.device("cpu"))
    sections = attention_sections(cache, model, bucket)
    assert 3 * longest <= sections["kv_pages"] <= 3 * longest + bucket.num_rows
    buffer = StepInputBuffer(sections, torch.device("cpu"))
    sequences = [Sequence.of(Request("r", 0, (1,) * longest, SamplingParams()), longest) for _ in range(3)]
    for number, sequence in enumerate(sequences):
        sequence.num_cached, sequence.pages = longest - 1, list(range(number * longest, (number + 1) * longest))
    prefill, *decodes = sequences
    step = StepPlan(PrefillChunk(prefill, longest - 16, longest, is_last=True), tuple(decodes))
    make_attentions(cache, model, {bucket: buffer})[bucket].plan(step)
    pages = buffer.array("kv_pages")[: 3 * longest].tolist()
    assert sorted(pages) == list(range(3 * longest))
