"""A few layers of the engine's own model, with everything that the engine puts around them: KvCache, LoRA pages,
attention.

Steps of these layers are planned as in the engine, then called as one function that a CUDA graph can capture. It
includes the embedding and final norm, a few microseconds in total, but not the head.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from punica_serve.base_model.lora_layout import LORA_GROUPS, LoraKind, LoraLimits, pages_needed
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.lone_rank import stand_in
from punica_serve.engine.adapters.lora_pool import AdapterPages, LoraPool
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence as EngineSequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
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
        buckets: Sequence[BatchBucket],
        context_length: int,
        rank: int,
        limits: LoraLimits,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """``buckets``: of the steps to come. ``limits``: of the adapters for which the tables have room."""
        whole = replace(model.whole, num_hidden_layers=num_layers, vocab_size=_VOCAB_SIZE)
        self.config = whole.shard(model.rank)
        self.weights = dummy_weights(self.config, dtype, device)
        self.device, self.context_length = device, context_length
        self.model = Llama(self.config, self.weights, stand_in(model.rank))
        most_decodes = max(bucket.num_decode_rows for bucket in buckets)
        pages_each = -(-context_length // PAGE_SIZE)
        prompt_pages = -(-max(bucket.num_prefill_rows for bucket in buckets) // PAGE_SIZE)
        num_pages = pages_each * most_decodes + prompt_pages
        self._cache = KvCache(self.config, num_pages=num_pages, page_size=PAGE_SIZE, dtype=dtype, device=device)
        self._kv_pages = [self._cache.allocate(pages_each) for _ in range(most_decodes)]
        self._prompt_pages = self._cache.allocate(prompt_pages)
        self._cache.pool.normal_()  # not earlier: on a CPU, pages start zeroed
        self._ref = AdapterRef("", "", 0, dict.fromkeys(self.config.linear_shapes, rank))
        most_adapters = most_decodes + (prompt_pages > 0)
        num_pages = most_adapters * max(pages_needed(self._ref.ranks).values())
        self._pool = LoraPool(self.config, num_pages=num_pages, dtype=dtype, device=device, limits=limits)
        self._adapter_pages = _random_adapters(self._pool, most_adapters, self._ref)
        self._gpu = _GpuParts(self._cache, self.config, buckets) if device.type == "cuda" else None

    def decode(self, adapters: Sequence[int | None]) -> ForwardBatch:
        """A decode of each request at the context length; rows that share an adapter must be adjacent."""
        return self._plan(StepPlan((), self._decodes(adapters)), BatchBucket(0, len(adapters)))

    def prefill(self, num_tokens: int, adapter: int | None, decodes: Sequence[int | None]) -> ForwardBatch:
        """A whole prompt of ``num_tokens`` with an adapter, beside ``decodes``."""
        request = Request("prompt", len(decodes), (1,) * num_tokens, SamplingParams(), self._ref_of(adapter))
        sequence = EngineSequence.of(request, num_tokens + 1)
        sequence.pages = self._prompt_pages[: -(-num_tokens // PAGE_SIZE)]
        plan = StepPlan((PrefillChunk(sequence, 0, num_tokens, is_last=True),), self._decodes(decodes))
        return self._plan(plan, BatchBucket(num_tokens, len(decodes)))

    def forward(self, step: ForwardBatch) -> Callable[[], Tensor]:
        """The layers' forward pass of a step, ready to be timed."""
        return lambda: self.model.forward(step)

    def check(self, step: ForwardBatch, backbone: ForwardBatch) -> None:
        """Raises ArithmeticError unless a step's outputs are finite and LoRA has changed each of its rows."""
        own, base = self.check_finite(step).clone(), self.forward(backbone)()
        if (own == base).all(1).any():
            raise ArithmeticError(f"LoRA left some of {len(own)} rows unchanged")

    def check_finite(self, step: ForwardBatch) -> Tensor:
        """A step's outputs; raises ArithmeticError unless they are finite."""
        own = self.forward(step)()
        if not own.isfinite().all():
            raise ArithmeticError(f"the layers' outputs for {len(own)} rows are not finite")
        return own

    def _decodes(self, adapters: Sequence[int | None]) -> tuple[EngineSequence, ...]:
        return tuple(self._sequence(row, adapter) for row, adapter in enumerate(adapters))

    def _ref_of(self, adapter: int | None) -> AdapterRef | None:
        return None if adapter is None else _named(self._ref, adapter)

    def _sequence(self, row: int, adapter: int | None) -> EngineSequence:
        request = Request(f"{row}", row, (1,) * self.context_length, SamplingParams(), self._ref_of(adapter))
        sequence = EngineSequence.of(request, self.context_length + 1)
        sequence.num_cached, sequence.pages = self.context_length - 1, self._kv_pages[row]
        return sequence

    def _plan(self, plan: StepPlan, bucket: BatchBucket) -> ForwardBatch:
        return self._plan_on_gpu(plan, bucket, self._gpu) if self._gpu else self._plan_on_cpu(plan)

    def _plan_on_cpu(self, plan: StepPlan) -> ForwardBatch:
        batch = build_rows(plan, self.device)
        attention, lora = TorchAttention(self._cache, self.config.spec), TorchLora(self._pool, self._pages_of)
        attention.plan(plan, batch)
        lora.plan(batch.segments)
        return ForwardBatch(batch.token_ids, batch.rotary_positions, attention, lora)

    def _plan_on_gpu(self, plan: StepPlan, bucket: BatchBucket, gpu: "_GpuParts") -> ForwardBatch:
        from punica_kernels.gpu.sgmv import workspace_numel
        from punica_serve.engine.cuda.cuda_lora import CudaLora
        from punica_serve.engine.cuda.cuda_runner import table_shapes
        from punica_serve.engine.cuda.step_inputs import StepInputs

        kind = plan.lora_kind
        shapes = table_shapes(bucket, self._pool.limits)
        table = shapes[LoraKind.USUAL]["qkv"]
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


def _random_adapters(pool: LoraPool, count: int, ref: AdapterRef) -> dict[str, AdapterPages]:
    """Fills an empty pool with adapters. No two pages of an adapter are adjacent, as in a used pool."""
    needed = pages_needed(ref.ranks)
    for tensors in pool.groups.values():
        tensors.a.normal_(std=0.02)
        tensors.b.normal_(std=0.02)
    pages: dict[str, AdapterPages] = {f"{adapter}": {group: [] for group in needed} for adapter in range(count)}
    for _ in range(max(needed.values())):
        for own in pages.values():
            for group, taken in pool.allocate(dict.fromkeys(needed, 1)).items():
                own[group] += taken
    return pages


class _GpuParts:
    """Objects that the steps of one model share on a GPU."""

    def __init__(self, cache: KvCache, model: ModelConfig, buckets: Sequence[BatchBucket]) -> None:
        from punica_serve.engine.cuda.cuda_attention import attention_sections, make_attentions

        device = cache.pool.device
        largest_first = sorted(buckets, key=lambda bucket: bucket.num_rows, reverse=True)
        self._buffers = {
            bucket: StepInputBuffer(attention_sections(cache, model, bucket), device) for bucket in largest_first
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
