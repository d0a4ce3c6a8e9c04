"""One step shape on a GPU: its inputs, its attention, its LoRA, and the forward pass, captured as a CUDA graph."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from punica_serve.engine.lora_batch import PagesOf
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.sequence import Sequence
from punica_serve.engine.step_inputs import StepInputs
from punica_serve.models.llama import Attention, Llama, LoraBatch


class PlannedAttention(Attention, Protocol):
    """Attention of one step shape."""

    def plan(self, step: StepPlan) -> None:
        """Tells the device where the step's requests lie. Never waits for it."""
        ...


class StepProgram:
    """A forward pass over fixed tensors: ``stage`` a step, then ``run``. Logits stay in the same place."""

    def __init__(
        self, model: Llama, inputs: StepInputs, attention: PlannedAttention, lora: LoraBatch, draws: Tensor
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._attention = attention
        self._lora = lora
        #: int [most sampled rows of any shape]: what the newest step has drawn.
        self._draws = draws
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None

    def stage(self, plan: StepPlan, draw_rows: Mapping[Sequence, int], pages_of: PagesOf) -> None:
        """Queues the copies of a step's inputs; see ``StepInputs.stage``."""
        self._inputs.stage(plan, draw_rows, pages_of)
        self._attention.plan(plan)

    def capture(self, pool: Any) -> None:
        """Makes a CUDA graph of ``run``, whose memory comes from a ``graph_pool_handle``. A step must be staged.

        The first pass compiles kernels and sets libraries up, which a capture must not.
        """
        self.run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        # What other threads do with the device, another engine's for one, is no part of the graph and may go on.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._logits = self._forward()
        self._graph = graph

    def run(self) -> Tensor:
        """Queues the forward pass of what is staged: logits [num_sampled, vocab], valid until the next."""
        if self._graph is None or self._logits is None:
            return self._forward()
        self._graph.replay()
        return self._logits

    def _forward(self) -> Tensor:
        inputs = self._inputs
        drawn = self._draws.index_select(0, inputs.sources.clamp_min(0))
        # A row that was not finite has drawn -1; whatever it does now is thrown away.
        token_ids = torch.where(inputs.sources < 0, inputs.token_ids, drawn).clamp_min(0)
        hidden = self._model.forward(token_ids, inputs.positions, self._attention, self._lora)
        if num_prefill_rows := inputs.shape.num_prefill_rows:
            hidden = torch.cat([hidden.index_select(0, inputs.last_row), hidden[num_prefill_rows:]])
        return self._model.logits(hidden)
