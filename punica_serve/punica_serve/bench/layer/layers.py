"""A few layers of the engine's own model, with everything that the engine puts around them: KvCache, LoRA pages,
attention.

Decode steps of these layers are planned as in the engine, then called as one function that a CUDA graph can capture. It
includes the embedding and final norm, a few microseconds in total, but not the head.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from punica_serve.base_model.lora_layout import LORA_GROUPS, LORA_PAGE_RANKS, USUAL_LORA_RANK, LoraKind, pages_needed
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.lone_rank import stand_in
from punica_serve.engine.adapters.lora_pool import AdapterPages, LoraPool
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence as EngineSequence
from punica_serve.engine.batching.step_planner import StepPlan
from punica_serve.engine.batching.step_rows import build_rows
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.graph_runner import PlannedAttention
from punica_serve.engine.cuda.step_input_buffer import StepInputBuffer
from punica_serve.engine.torch_attention import TorchAttention
from punica_serve.engine.torch_lora import TorchLora
from punica_serve.models.llama import Llama
from punica_serve.models.model import Attention, ForwardBatch
from punica_serve.models.model_weights import dummy_weights
from punica_serve.protocol import AdapterRef, Request, SamplingParams

PAGE_SIZE = 16
#: A tiny vocabulary, since the embedding is not measured.
_VOCAB_SIZE = 128


class RandomLayers:
    """Random weights, a KvCache of random tokens, and random adapters of one rank."""

    def __init__(
        self,
        model: ModelConfig,
        *,
        num_layers: int,
        batch_sizes: Sequence[int],
        context_length: int,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        whole = replace(model.whole, num_hidden_layers=num_layers, vocab_size=_VOCAB_SIZE)
        self.config = whole.shard(model.rank)
        self.weights = dummy_weights(self.config, dtype, device)
        self.device, self.context_length = device, context_length
        self.model = Llama(self.config, self.weights, stand_in(model.rank))
        max_batch = max(batch_sizes)
        pages_each = -(-context_length // PAGE_SIZE)
        num_pages = pages_each * max_batch
        self._cache = KvCache(self.config, num_pages=num_pages, page_size=PAGE_SIZE, dtype=dtype, device=device)
        self._kv_pages = [self._cache.allocate(pages_each) for _ in range(max_batch)]
        self._cache.pool.normal_()  # not earlier: on a CPU, pages start zeroed
        self._ref = AdapterRef("", "", 0, dict.fromkeys(self.config.linear_shapes, rank))
        self._pool, self._adapter_pages = _random_adapters(self.config, max_batch, self._ref, dtype, device)
        self._gpu = _GpuParts(self._cache, self.config, batch_sizes) if device.type == "cuda" else None

    def decode(self, adapters: Sequence[int | None]) -> ForwardBatch:
        """A decode of each request at the context length; rows that share an adapter must be adjacent."""
        plan = StepPlan((), tuple(self._sequence(row, adapter) for row, adapter in enumerate(adapters)))
        return self._plan_on_gpu(plan, self._gpu) if self._gpu else self._plan_on_cpu(plan)

    def forward(self, step: ForwardBatch) -> Callable[[], Tensor]:
        """The layers' forward pass of a step, ready to be timed."""
        return lambda: self.model.forward(step)

    def check(self, step: ForwardBatch, backbone: ForwardBatch) -> None:
        """Raises ArithmeticError unless a step's outputs are finite and LoRA has changed each of its rows."""
        own, base = self.forward(step)().clone(), self.forward(backbone)()
        if not own.isfinite().all():
            raise ArithmeticError(f"the layers' outputs for {len(own)} rows are not finite")
        if (own == base).all(1).any():
            raise ArithmeticError(f"LoRA left some of {len(own)} rows unchanged")

    def _sequence(self, row: int, adapter: int | None) -> EngineSequence:
        ref = None if adapter is None else _named(self._ref, adapter)
        request = Request(f"{row}", row, (1,) * self.context_length, SamplingParams(), ref)
        sequence = EngineSequence.of(request, self.context_length + 1)
        sequence.num_cached, sequence.pages = self.context_length - 1, self._kv_pages[row]
        return sequence

    def _plan_on_cpu(self, plan: StepPlan) -> ForwardBatch:
        batch = build_rows(plan, self.device)
        attention, lora = TorchAttention(self._cache, self.config.spec), TorchLora(self._pool, self._pages_of)
        attention.plan(plan, batch)
        lora.plan(batch.segments)
        return ForwardBatch(batch.token_ids, batch.rotary_positions, attention, lora)

    def _plan_on_gpu(self, plan: StepPlan, gpu: "_GpuParts") -> ForwardBatch:
        from punica_kernels.gpu.sgmv import workspace_numel
        from punica_kernels.lora_table import LoraTableShape
        from punica_serve.engine.cuda.cuda_lora import CudaLora
        from punica_serve.engine.cuda.step_inputs import StepInputs

        num_rows = len(plan.decodes)
        bucket = BatchBucket(0, num_rows)
        kind = plan.lora_kind
        table = LoraTableShape(num_rows, num_rows, USUAL_LORA_RANK // LORA_PAGE_RANKS)
        shapes = {LoraKind.USUAL: dict.fromkeys(LORA_GROUPS, table)}
        # Not needed by attention: steps of one size differ only in their adapters.
        buffer = StepInputBuffer(StepInputs.sections(bucket, shapes), self.device)
        inputs = StepInputs(bucket, shapes, buffer)
        inputs.write(plan, {})
        inputs.write_lora(plan, self._pages_of, kind)
        buffer.copy_to_device()
        numel = max(workspace_numel(table, self._pool.groups[group].a.shape[2]) for group in LORA_GROUPS)
        workspace = torch.empty(numel, device=self.device)
        lora = CudaLora(self._pool, inputs.tables(kind), workspace, gpu.side)
        return ForwardBatch(inputs.token_ids, inputs.positions, gpu.attend(plan, bucket), lora)

    def _pages_of(self, digest: str) -> AdapterPages:
        return self._adapter_pages[digest]


class NoAttention:
    """Appends keys and values and returns the queries unchanged, to measure the rest of a layer."""

    def __init__(self, attention: Attention) -> None:
        self._attention = attention
        self.slot_mapping = attention.slot_mapping

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._attention.cache(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        return q.flatten(1)


def _named(ref: AdapterRef, adapter: int) -> AdapterRef:
    """The same shape under another name."""
    return AdapterRef(f"{adapter}", ref.uri, ref.num_bytes, ref.ranks)


def _random_adapters(
    model: ModelConfig, count: int, ref: AdapterRef, dtype: torch.dtype, device: torch.device
) -> tuple[LoraPool, dict[str, AdapterPages]]:
    """Adapters with separate weights. No two pages of an adapter are adjacent, as in a used pool."""
    needed = pages_needed(ref.ranks)
    pool = LoraPool(model, num_pages=count * max(needed.values()), dtype=dtype, device=device)
    for tensors in pool.groups.values():
        tensors.a.normal_(std=0.02)
        tensors.b.normal_(std=0.02)
    pages: dict[str, AdapterPages] = {f"{adapter}": {group: [] for group in needed} for adapter in range(count)}
    for _ in range(max(needed.values())):
        for own in pages.values():
            for group, taken in pool.allocate(dict.fromkeys(needed, 1)).items():
                own[group] += taken
    return pool, pages


class _GpuParts:
    """Objects that the steps of one model share on a GPU."""

    def __init__(self, cache: KvCache, model: ModelConfig, batch_sizes: Sequence[int]) -> None:
        from punica_serve.engine.cuda.cuda_attention import attention_sections, make_attentions

        device = cache.pool.device
        buckets = [BatchBucket(0, batch_size) for batch_size in sorted(batch_sizes, reverse=True)]
        self._buffers = {
            bucket: StepInputBuffer(attention_sections(cache, model, bucket), device) for bucket in buckets
        }
        self._attentions = make_attentions(cache, model, self._buffers)
        #: LoRA's stream, shared by all steps: torch hands out 32 streams in turn, so later ones include the stream that
        #: graphs are captured on, where nothing can overlap.
        self.side = torch.cuda.Stream(device)

    def attend(self, plan: StepPlan, bucket: BatchBucket) -> PlannedAttention:
        """The attention of a planned step."""
        attention = self._attentions[bucket]
        attention.plan(plan)
        self._buffers[bucket].copy_to_device()
        return attention
