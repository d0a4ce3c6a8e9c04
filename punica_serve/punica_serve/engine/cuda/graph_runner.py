"""The forward pass of one bucket on a GPU, captured as a CUDA graph, with its inputs, attention and LoRA."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from punica_kernels.sampled_tokens import fill_sampled
from punica_serve.base_model.lora_layout import LoraKind
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.cuda.step_input_buffer import FIRST_SECTIONS, StepInputBuffer
from punica_serve.engine.cuda.step_inputs import StepInputs
from punica_serve.engine.torch_lora import PagesOf
from punica_serve.models.linear import LoraBatch
from punica_serve.models.model import Attention, ForwardBatch, Model
from punica_serve.process.memory_tuning import gc_disabled


class PlannedAttention(Attention, Protocol):
    """Attention of one bucket."""

    def plan(self, step: StepPlan) -> None:
        """Writes the tables of a step into the input buffer. Never waits for the device."""
        ...


class GraphRunner:
    """A forward pass over tensors with fixed addresses: ``stage`` a step, then ``run`` it."""

    def __init__(
        self,
        model: Model,
        buffer: StepInputBuffer,
        inputs: StepInputs,
        attention: PlannedAttention,
        lora: LoraBatch,
        sampled_ids: Tensor,
        *,
        kind: LoraKind,
    ) -> None:
        """``inputs`` and ``attention`` write to ``buffer``. ``lora`` reads the ``inputs``' tables of this kind."""
        self._model = model
        self._buffer = buffer
        self._inputs = inputs
        self._attention = attention
        self._batch = ForwardBatch(inputs.token_ids, inputs.positions, attention, lora)
        self._kind = kind
        #: int64 [most sampled rows of any bucket]: the tokens that the newest step has sampled.
        self._sampled_ids = sampled_ids
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None

    def stage(self, plan: StepPlan, logit_rows: Mapping[Sequence, int], pages_of: PagesOf) -> None:
        """Writes a step and queues the copy; ``logit_rows``: see ``StepInputs.write``."""
        self._inputs.write(plan, logit_rows)
        if self._kind is not LoraKind.NONE:
            self._inputs.write_lora(plan, pages_of, self._kind)
        self._attention.plan(plan)
        self._buffer.copy_to_device(FIRST_SECTIONS[self._kind])

    def capture(self, pool: Any) -> None:
        """Captures ``run`` as a CUDA graph in a memory pool (``graph_pool_handle``). A step must be staged.

        The pass before the capture compiles kernels and sets up libraries, which a capture must not do.
        """
        self.run()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        stream.synchronize()
        # Collecting another engine's graphs would free device memory, which breaks a capture. Other threads, such as
        # another engine's, may go on using the device: their work is not part of the graph. Captures alone take turns:
        # the passes before them may wait for a rank that is another thread.
        with (
            gc_disabled(),
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            self._logits = self._forward()
        self._graph = graph

    def run(self) -> Tensor:
        """Queues the forward pass of the staged step: logits [num_sampled, vocab], valid until the next run."""
        if self._graph is None or self._logits is None:
            return self._forward()
        self._graph.replay()
        return self._logits

    def _forward(self) -> Tensor:
        inputs = self._inputs
        fill_sampled(inputs.token_ids, inputs.sources, self._sampled_ids)
        hidden = self._model.forward(self._batch)
        if inputs.sampled_rows is None:
            sampled = hidden[inputs.bucket.first_sampled :]
        else:
            sampled = hidden.index_select(0, inputs.sampled_rows)
        return self._model.logits(sampled, self._batch.lora)
