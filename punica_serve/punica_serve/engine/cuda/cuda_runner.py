"""Runs steps on an NVIDIA GPU with overlap scheduling: a step is launched while the device runs the one before.

Everything a step does is queued on one stream, in order: copy of the inputs, forward pass (a CUDA graph, in which other
streams branch off and join again), sampling, copy of the sampled tokens. So a step can read tokens that the one before
has sampled before the host knows them. The pages of a finished request can be given to another at once, since the step
of their new owner runs later on the same stream.
"""

import time
from collections.abc import Mapping
from collections.abc import Sequence as Series
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from punica_kernels.gpu.sgmv import workspace_numel
from punica_kernels.lora_table import LoraTableShape
from punica_serve.base_model.lora_layout import LORA_GROUPS, LoraKind, LoraLimits
from punica_serve.engine.adapters.layer_arrival import CudaArrival
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.cpu_assist.assist_job import AssistJob
from punica_serve.engine.cpu_assist.assistant import CpuAssist
from punica_serve.engine.cuda.batch_bucket import BatchBucket, BatchBuckets
from punica_serve.engine.cuda.cuda_attention import (
    DEFAULT_OPTIONS,
    AttentionOptions,
    attention_sections,
    make_attentions,
)
from punica_serve.engine.cuda.cuda_exchange import CudaExchange
from punica_serve.engine.cuda.cuda_lora import CudaLora
from punica_serve.engine.cuda.graph_runner import GraphRunner
from punica_serve.engine.cuda.launch_limit import check_launches
from punica_serve.engine.cuda.layer_gates import LayerGates
from punica_serve.engine.cuda.step_input_buffer import StepInputBuffer
from punica_serve.engine.cuda.step_inputs import StepInputs
from punica_serve.engine.sampler import PendingTokens, SampledToken, Sampler
from punica_serve.engine.step_runner import arrival_for
from punica_serve.engine.torch_lora import ArrivalOf, PagesOf
from punica_serve.models.collectives import Collectives
from punica_serve.models.model import Model
from punica_serve.process.start_clock import Progress, no_progress
from punica_serve.protocol import LoraGroup

#: Steps whose LoRA of usual ranks CPU processes may compute.
_ASSISTED: Literal["assisted"] = "assisted"
_Kind = LoraKind | Literal["assisted"]

_LOW_PRIORITY, _HIGH_PRIORITY = 0, -1


class CudaStep:
    """A launched step."""

    def __init__(
        self, pending: PendingTokens, end: torch.cuda.Event, phases_ns: tuple[int, int, int], *, is_late: bool
    ) -> None:
        self._pending = pending
        self._end = end
        self.phases_ns = phases_ns
        self.is_late = is_late

    @property
    def has_ended(self) -> bool:
        return bool(self._end.query())

    def sampled_tokens(self) -> Series[SampledToken | None]:
        """Waits for the step: the only wait for the device, apart from ``launch``, which waits for copies."""
        self._end.synchronize()
        return self._pending.read()


class CudaRunner:
    """All buckets of one engine, for each kind of LoRA. The constructor captures their graphs, which takes seconds."""

    overlap_scheduling = True

    def __init__(
        self,
        model: Model,
        cache: KvCache,
        lora_pool: LoraPool,
        sampler: Sampler,
        pages_of: PagesOf,
        arrival_of: ArrivalOf,
        collectives: Collectives,
        buckets: BatchBuckets,
        *,
        use_graphs: bool,
        by_layer: bool,
        attention: AttentionOptions = DEFAULT_OPTIONS,
        assist: CpuAssist | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """``by_layer``: prefills wait for the layers of an adapter that is still arriving. ``assist``: CPU processes
        may compute what missing layers add. ``progress`` counts the captures.
        """
        self._sampler = sampler
        self._pages_of = pages_of
        self._arrival_of = arrival_of
        self._gates = LayerGates(model.config.num_hidden_layers, cache.pool.device) if by_layer else None
        self._buckets = buckets
        # Above the streams of LoRA and of prefills' attention, which use what it leaves.
        self._stream = torch.cuda.Stream(cache.pool.device, priority=_HIGH_PRIORITY)
        self._staged = torch.cuda.Event()
        self._logit_rows: dict[Sequence, int] = {}
        self.newest_end: torch.cuda.Event | None = None
        # Lt's choice of kernels is up to a tenth faster for narrow projections (docs/performance.md).
        torch.backends.cuda.preferred_blas_library("cublaslt")
        self._exchange = self._make_exchange(assist)
        alone = buckets.alone(assist.shape.max_rows) if assist is not None else ()
        #: The input buffer of each bucket.
        self._buffers, self._runners = _make_runners(
            model,
            cache,
            lora_pool,
            sampler.sampled_ids,
            buckets,
            self._gates,
            attention,
            self._exchange,
            alone,
            collectives,
        )
        torch.cuda.synchronize(cache.pool.device)  # their inputs were made on another stream
        self._warm_up(progress, use_graphs=use_graphs)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> CudaStep:
        bucket = self._buckets.fit(plan)
        with torch.cuda.stream(self._stream):
            # The step before the newest has ended, so the newest one's copies end within microseconds.
            self._staged.synchronize()
            waited_ns = time.monotonic_ns()
            runner = self._runners[bucket, plan.lora_kind if plan.assist is None else _ASSISTED]
            if plan.assist is not None and self._exchange is not None:
                self._buffers[bucket].write("assist", self._exchange.words(plan.assist))
            runner.stage(plan, self._logit_rows, self._pages_of)
            self._staged.record()
            staged_ns = time.monotonic_ns()
            self._close_gates(plan)
            logits = runner.run()
            queued_ns = time.monotonic_ns()
            is_late = self.newest_end is None or self.newest_end.query()
            rows = logit_rows(plan, bucket)
            pending = self._sampler.launch(logits, plan.sampled, [rows[sequence] for sequence in plan.sampled])
            end = torch.cuda.Event()
            end.record()
        self._logit_rows, self.newest_end = rows, end
        return CudaStep(pending, end, (waited_ns, staged_ns, queued_ns), is_late=is_late)

    def time_exchanges(self, job: AssistJob) -> float:
        """Seconds of one exchange with CPU processes of a job of the first group alone, which has just begun."""
        assert self._exchange is not None
        with torch.cuda.stream(self._stream):
            return self._exchange.time(job)

    def _make_exchange(self, assist: CpuAssist | None) -> CudaExchange | None:
        if assist is None or assist.arrival_words is None:
            return None
        with torch.cuda.stream(self._stream):
            return CudaExchange(assist.memory, assist.arrival_words)

    def _close_gates(self, plan: StepPlan) -> None:
        """Makes the step wait for the layers of its prefill's adapter if that is still arriving."""
        if plan.assist is not None:
            return
        arrival = arrival_for(plan, self._arrival_of)
        if self._gates is not None and isinstance(arrival, CudaArrival):
            self._gates.close_until(arrival)

    @torch.inference_mode()
    def _warm_up(self, progress: Progress, *, use_graphs: bool) -> None:
        """Compiles all kernels and captures all graphs, in one memory pool: graphs never run together."""
        pool = torch.cuda.graph_pool_handle()
        nothing = StepPlan((), ())
        warm: set[int] = set()
        with torch.cuda.stream(self._stream):
            for done, ((bucket, _), runner) in enumerate(self._runners.items()):
                progress(done, len(self._runners))
                runner.stage(nothing, {}, self._pages_of)
                if use_graphs:
                    runner.capture(pool)
                logits = runner.run()
                if bucket.num_sampled not in warm:  # sampling depends on the number of rows alone
                    self._sampler.warm_up(logits)
                    warm.add(bucket.num_sampled)
                self._stream.synchronize()  # no two copies of inputs may be in flight
            # Captures empty the allocator's cache; this reserves the most memory that sampling needs.
            self._sampler.warm_up(logits.new_zeros(max(warm), logits.shape[1]))


def _make_runners(
    model: Model,
    cache: KvCache,
    lora_pool: LoraPool,
    sampled_ids: Tensor,
    buckets: BatchBuckets,
    gates: LayerGates | None,
    options: AttentionOptions,
    exchange: CudaExchange | None,
    alone: Series[BatchBucket],
    collectives: Collectives,
) -> tuple[dict[BatchBucket, StepInputBuffer], dict[tuple[BatchBucket, _Kind], GraphRunner]]:
    """``alone``: buckets in which CPU processes may help."""
    device = cache.pool.device
    side = torch.cuda.Stream(device, priority=_LOW_PRIORITY)
    tables = {bucket: table_shapes(bucket, lora_pool.limits) for bucket in buckets.all}
    qkv_tables = {bucket: shapes[LoraKind.USUAL]["qkv"] for bucket, shapes in tables.items()}
    check_launches(cache, model.config, qkv_tables, options)
    numels = (_workspace_numel(lora_pool, groups) for kinds in tables.values() for groups in kinds.values())
    workspace = torch.empty(max(numels), device=device)
    buffers = {
        bucket: StepInputBuffer(
            StepInputs.sections(bucket, shapes) | attention_sections(cache, model.config, bucket, options), device
        )
        for bucket, shapes in tables.items()
    }
    runners: dict[tuple[BatchBucket, _Kind], GraphRunner] = {}
    for bucket, attention in make_attentions(cache, model.config, buffers, options).items():
        inputs = StepInputs(bucket, tables[bucket], buffers[bucket])
        for kind in reversed(lora_pool.limits.kinds):
            lora = CudaLora(
                lora_pool,
                inputs.tables(kind),
                workspace,
                side,
                gates if bucket.num_prefill_rows else None,
                collectives=collectives,
            )
            parts = (model, buffers[bucket], inputs, attention, lora, sampled_ids)
            runners[bucket, kind] = GraphRunner(*parts, kind=kind)
        if exchange is not None and bucket in alone:
            own = exchange.of_bucket(buffers[bucket].device("assist"), bucket.num_prefill_rows)
            lora = CudaLora(lora_pool, inputs.tables(LoraKind.USUAL), workspace, side, exchange=own)
            parts = (model, buffers[bucket], inputs, attention, lora, sampled_ids)
            runners[bucket, _ASSISTED] = GraphRunner(*parts, kind=LoraKind.USUAL)
    return buffers, runners


def table_shapes(bucket: BatchBucket, limits: LoraLimits) -> dict[LoraKind, dict[LoraGroup, LoraTableShape]]:
    """The tables of each kind of step that can happen. Most segments: one for each decode, and two for each prefill,
    whose adapter may be invoked within; padding is one with the rows before the first.
    """
    num_segments = bucket.num_decode_rows + 2 * bucket.num_prefills
    shapes: dict[LoraKind, dict[LoraGroup, LoraTableShape]] = {}
    for kind in limits.kinds:
        if kind is not LoraKind.NONE:
            table = LoraTableShape(bucket.num_rows, num_segments, limits.rank_pages(kind))
            shapes[kind] = dict.fromkeys(LORA_GROUPS, table)
    if limits.vocabulary:
        table = shapes[LoraKind.WIDE]["qkv"]
        shapes[LoraKind.WIDE] |= {"embed": table, "head": replace(table, max_rows=bucket.num_sampled)}
    return shapes


def _workspace_numel(pool: LoraPool, tables: Mapping[LoraGroup, LoraTableShape]) -> int:
    return max(workspace_numel(table, pool.groups[group].a.shape[2]) for group, table in tables.items())


def logit_rows(plan: StepPlan, bucket: BatchBucket) -> dict[Sequence, int]:
    """The row of the logits, and so of the sampled tokens, of each sequence that gets one."""
    rows = {sequence: bucket.num_prefills + number for number, sequence in enumerate(plan.decodes)}
    return rows | {chunk.sequence: number for number, chunk in enumerate(plan.prefills) if chunk.is_last}
