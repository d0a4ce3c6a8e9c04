"""Runs steps on an NVIDIA GPU, one ahead of the host: a step is launched while the device runs the one before.

Everything a step does is queued on one stream, in order: copy of the inputs, forward pass (a CUDA graph, in which
others branch off and come back), sampling, copy of the draws. So a step may read what the one before has drawn before
the host knows it, and pages that an ended request gives back can be given to another at once: their new owner's step
runs later on the same stream.
"""

from collections.abc import Sequence as Series

import torch
from torch import Tensor

from punica_kernels.gpu.sgmv import workspace_numel
from punica_kernels.lora_table import LoraTableShape
from punica_serve.collector import without_collection
from punica_serve.engine.cuda_attention import attention_parts, make_attentions
from punica_serve.engine.cuda_lora import CudaLora
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.launch_limit import check_launches
from punica_serve.engine.lora_batch import PagesOf
from punica_serve.engine.lora_pool import LoraPool
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.sampler import Draw, PendingDraws, Sampler
from punica_serve.engine.sequence import Sequence
from punica_serve.engine.step_inputs import StepInputs
from punica_serve.engine.step_program import StepProgram
from punica_serve.engine.step_shape import StepShape, StepShapes
from punica_serve.engine.step_words import StepWords
from punica_serve.lora_layout import LORA_PAGE_RANKS, MAX_LORA_RANK
from punica_serve.models.llama import Llama

_LOW_PRIORITY, _HIGH_PRIORITY = 0, -1


class CudaStep:
    """A launched step."""

    def __init__(self, pending: PendingDraws, end: torch.cuda.Event) -> None:
        self._pending = pending
        self._end = end

    def draws(self) -> Series[Draw | None]:
        """Waits for the step: where the host waits for the device, but for the copies that ``launch`` waits for."""
        self._end.synchronize()
        return self._pending.read()


class CudaRunner:
    """All step shapes of one engine, with and without LoRA. Captures them when it is made, which takes seconds."""

    runs_ahead = True

    def __init__(
        self,
        model: Llama,
        cache: KvCache,
        lora_pool: LoraPool,
        sampler: Sampler,
        pages_of: PagesOf,
        shapes: StepShapes,
        *,
        use_graphs: bool,
    ) -> None:
        self._sampler = sampler
        self._pages_of = pages_of
        self._shapes = shapes
        # Above those of LoRA and of prefills' attention, which take what it leaves.
        self._stream = torch.cuda.Stream(cache.pool.device, priority=_HIGH_PRIORITY)
        self._staged = torch.cuda.Event()
        self._draw_rows: dict[Sequence, int] = {}
        self.newest_end: torch.cuda.Event | None = None
        # Lt's choice of kernels is up to a tenth faster for narrow projections (docs/performance.md).
        torch.backends.cuda.preferred_blas_library("cublaslt")
        self._programs = _make_programs(model, cache, lora_pool, sampler.draws, shapes)
        torch.cuda.synchronize(cache.pool.device)  # what they are made of was queued on another stream
        self._warm_up(use_graphs=use_graphs)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> CudaStep:
        shape = self._shapes.fit(plan)
        with torch.cuda.stream(self._stream):
            # The step before the newest has ended, so the newest one's copies have, or will in microseconds.
            self._staged.synchronize()
            program = self._programs[shape, plan.num_adapters > 0]
            program.stage(plan, self._draw_rows, self._pages_of)
            self._staged.record()
            logits = program.run()
            rows = draw_rows(plan, shape)
            pending = self._sampler.launch(logits, plan.sampled, [rows[sequence] for sequence in plan.sampled])
            end = torch.cuda.Event()
            end.record()
        self._draw_rows, self.newest_end = rows, end
        return CudaStep(pending, end)

    @torch.inference_mode()
    def _warm_up(self, *, use_graphs: bool) -> None:
        """Compiles all kernels, and captures graphs over one memory pool: they never run together."""
        pool = torch.cuda.graph_pool_handle()
        nothing = StepPlan(None, ())
        warm: set[int] = set()
        # What is collected, another engine's graphs for one, is taken from the device, which spoils a capture.
        with torch.cuda.stream(self._stream), without_collection():
            for (shape, _), program in self._programs.items():
                program.stage(nothing, {}, self._pages_of)
                if use_graphs:
                    program.capture(pool)
                logits = program.run()
                if shape.num_sampled not in warm:  # of a shape, sampling knows the number of rows alone
                    self._sampler.warm_up(logits)
                    warm.add(shape.num_sampled)
                torch.cuda.synchronize(self._stream.device)  # no two copies of inputs may be under way
            # Captures empty the allocator's cache: what sampling takes at most is to be there from here on.
            self._sampler.warm_up(logits.new_zeros(max(warm), logits.shape[1]))


def _make_programs(
    model: Llama, cache: KvCache, lora_pool: LoraPool, draws: Tensor, shapes: StepShapes
) -> dict[tuple[StepShape, bool], StepProgram]:
    device = cache.pool.device
    side = torch.cuda.Stream(device, priority=_LOW_PRIORITY)
    tables = {shape: _table_shape(shape) for shape in shapes.all}
    check_launches(cache, model.config, tables)
    workspace = torch.empty(max(_workspace_numel(lora_pool, table) for table in tables.values()), device=device)
    words = {
        shape: StepWords(StepInputs.parts(shape, table) | attention_parts(cache, model.config, shape), device)
        for shape, table in tables.items()
    }
    programs: dict[tuple[StepShape, bool], StepProgram] = {}
    for shape, attention in make_attentions(cache, model.config, words).items():
        inputs = StepInputs(shape, tables[shape], words[shape])
        for with_lora in (True, False):
            lora = CudaLora(lora_pool, inputs.tables if with_lora else {}, workspace, side)
            parts = (model, words[shape], inputs, attention, lora, draws)
            programs[shape, with_lora] = StepProgram(*parts, with_lora=with_lora)
    return programs


def _table_shape(shape: StepShape) -> LoraTableShape:
    """Segments at most: the prefill, the rows that pad it, and one for each decode."""
    num_segments = shape.num_decode_rows + 2 * (shape.num_prefill_rows > 0)
    return LoraTableShape(shape.num_rows, num_segments, MAX_LORA_RANK // LORA_PAGE_RANKS)


def _workspace_numel(pool: LoraPool, table: LoraTableShape) -> int:
    return max(workspace_numel(table, group.a.shape[2]) for group in pool.groups.values())


def draw_rows(plan: StepPlan, shape: StepShape) -> dict[Sequence, int]:
    """The row of the logits, and so of the draws, of each sequence that gets a token."""
    first = 1 if shape.num_prefill_rows else 0
    rows = {sequence: first + number for number, sequence in enumerate(plan.decodes)}
    if plan.prefill and plan.prefill.is_last:
        rows[plan.prefill.sequence] = 0
    return rows
