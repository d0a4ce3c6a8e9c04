"""One step shape on a GPU: its inputs, its attention, its LoRA, and the forward pass, captured as a CUDA graph."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from punica_kernels.drawn_tokens import place_drawn
from punica_serve.engine.lora_batch import PagesOf
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.sequence import Sequence
from punica_serve.engine.step_inputs import FIRST_BEHIND_LORA, StepInputs
from punica_serve.engine.step_words import StepWords
from punica_serve.models.llama import Attention, Llama, LoraBatch


class PlannedAttention(Attention, Protocol):
    """Attention of one step shape."""

    def plan(self, step: StepPlan) -> None:
        """Writes into the shape's words where the step's requests lie. Never waits for the device."""
        ...


class StepProgram:
    """A forward pass over fixed tensors: ``stage`` a step, then ``run``. Logits stay in the same place."""

    def __init__(
        self,
        model: Llama,
        words: StepWords,
        inputs: StepInputs,
        attention: PlannedAttention,
        lora: LoraBatch,
        draws: Tensor,
        *,
        with_lora: bool,
    ) -> None:
        """``inputs`` and ``attention`` lie in ``words``. ``with_lora``: ``lora`` reads the tables of ``inputs``."""
        self._model = model
        self._words = words
        self._inputs = inputs
        self._attention = attention
        self._lora = lora
        self._with_lora = with_lora
        #: int [most sampled rows of any shape]: what the newest step has drawn.
        self._draws = draws
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None

    def stage(self, plan: StepPlan, draw_rows: Mapping[Sequence, int], pages_of: PagesOf) -> None:
        """Writes a step and queues the copy; ``draw_rows``: see ``StepInputs.write``."""
        self._inputs.write(plan, draw_rows)
        if self._with_lora:
            self._inputs.write_lora(plan, pages_of)
        self._attention.plan(plan)
        self._words.queue(None if self._with_lora else FIRST_BEHIND_LORA)

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
        inputs, first_sampled = self._inputs, max(self._inputs.shape.num_prefill_rows - 1, 0)
        place_drawn(inputs.token_ids, inputs.sources, self._draws)
        hidden = self._model.forward(inputs.token_ids, inputs.positions, self._attention, self._lora)
        return self._model.logits(hidden[first_sampled:])
