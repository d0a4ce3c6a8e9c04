"""Token ids, positions and LoRA tables of a step, in sections of its input buffer.

A prefill is padded in front. So its last row is the same in every step of a bucket, and the decodes of its adapter are
next to it.
"""

from collections.abc import Mapping

import numpy as np

from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_planner import StepPlan
from punica_serve.engine.batching.step_rows import build_segments
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.step_input_buffer import FIRST_AFTER_LORA, Section, StepInputBuffer
from punica_serve.engine.torch_lora import PagesOf
from punica_serve.protocol import LoraGroup


class StepInputs:
    """The inputs of one bucket, in sections of its buffer."""

    def __init__(self, bucket: BatchBucket, table_shape: LoraTableShape, buffer: StepInputBuffer) -> None:
        self.bucket = bucket
        self._table_shape = table_shape
        self._buffer = buffer
        self.token_ids, self.positions = buffer.device("token_ids"), buffer.device("positions")
        #: Row of the step before whose sampled token is the input; -1: it is in ``token_ids``.
        self.sources = buffer.device("sources")
        self.tables: dict[LoraGroup, LoraTable] = {
            group: LoraTable(buffer.device(group), table_shape) for group in LORA_GROUPS
        }

    @staticmethod
    def sections(bucket: BatchBucket, table_shape: LoraTableShape) -> dict[Section, int]:
        """The words of its sections, those of LoRA first."""
        tables: dict[Section, int] = dict.fromkeys(LORA_GROUPS, table_shape.num_words)
        rows: tuple[Section, ...] = (FIRST_AFTER_LORA, "sources", "positions")
        return tables | dict.fromkeys(rows, bucket.num_rows)

    def write(self, plan: StepPlan, logit_rows: Mapping[Sequence, int]) -> None:
        """Writes the rows of a step. ``logit_rows``: the rows in which the step before sampled the tokens in flight."""
        token_ids, positions, sources = (self._buffer.array(name) for name in ("token_ids", "positions", "sources"))
        sources.fill(-1)
        token_ids.fill(0)
        positions.fill(0)
        num_prefill_rows = self.bucket.num_prefill_rows
        if chunk := plan.prefill:
            rows = slice(num_prefill_rows - chunk.num_tokens, num_prefill_rows)
            token_ids[rows] = chunk.sequence.token_ids[chunk.start : chunk.end]
            positions[rows] = np.arange(chunk.start, chunk.end, dtype=np.int32) + chunk.sequence.rotary_start
        decodes = slice(num_prefill_rows, num_prefill_rows + len(plan.decodes))
        token_ids[decodes] = [0 if sequence.num_in_flight else sequence.token_ids[-1] for sequence in plan.decodes]
        sources[decodes] = [logit_rows[sequence] if sequence.num_in_flight else -1 for sequence in plan.decodes]
        positions[decodes] = [sequence.rotary_start + sequence.num_cached for sequence in plan.decodes]

    def write_lora(self, plan: StepPlan, pages_of: PagesOf) -> None:
        """Writes which rows use which pages. Not needed by a runner without LoRA."""
        segments = build_segments(plan, self.bucket.num_prefill_rows)
        owned = [pages_of(digest) if digest else {} for digest in segments.digests]
        for group in LORA_GROUPS:
            pages = [own.get(group, []) for own in owned]
            self._table_shape.fill(self._buffer.array(group), segments.indptr, pages)
