"""Token ids, positions and LoRA tables of a step, in sections of its input buffer.

Prefills are padded in front, so that the decodes of the last one's adapter are next to it. Without other prefills its
last row is the same in every step of a bucket.
"""

from collections.abc import Mapping

import numpy as np

from punica_kernels.exchange_words import NUM_STEP_WORDS
from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_kernels.members import Indices
from punica_serve.base_model.lora_layout import LoraKind
from punica_serve.engine.adapters.lora_pool import AdapterPages
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.batching.step_rows import build_segments
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.step_input_buffer import FIRST_SECTIONS, TABLE_SECTIONS, Section, StepInputBuffer
from punica_serve.engine.cuda.step_pages import prefill_rows
from punica_serve.engine.torch_lora import PagesOf
from punica_serve.protocol import LoraGroup

#: The shape of each group's LoRA table, by the kind of step.
TableShapes = Mapping[LoraKind, Mapping[LoraGroup, LoraTableShape]]


class StepInputs:
    """The inputs of one bucket, in sections of its buffer."""

    def __init__(self, bucket: BatchBucket, shapes: TableShapes, buffer: StepInputBuffer) -> None:
        self.bucket = bucket
        self._shapes = shapes
        self._buffer = buffer
        self.token_ids, self.positions = buffer.device("token_ids"), buffer.device("positions")
        #: Row of the step before whose sampled token is the input; -1: it is in ``token_ids``.
        self.sources = buffer.device("sources")
        #: int32 [num_sampled]: the rows whose logits are wanted; None if they are adjacent, the last ones.
        self.sampled_rows = buffer.device("sampled_rows") if bucket.num_prefills > 1 else None
        #: The same on the host.
        self._sampled = np.arange(bucket.num_rows - bucket.num_sampled, bucket.num_rows, dtype=np.int32)
        #: What the tables of each kind hold: segments, the pages of their adapters, and the rows that are sampled.
        self._written: dict[LoraKind, tuple[tuple[int, ...], list[AdapterPages], bytes]] = {}

    def tables(self, kind: LoraKind) -> dict[LoraGroup, LoraTable]:
        """The tables that steps of this kind read; none without LoRA."""
        shapes, sections = self._shapes.get(kind, {}), TABLE_SECTIONS.get(kind, {})
        return {group: LoraTable(self._buffer.device(sections[group]), shape) for group, shape in shapes.items()}

    @staticmethod
    def sections(bucket: BatchBucket, shapes: TableShapes) -> dict[Section, int]:
        """The words of its sections, those of LoRA first."""
        tables = {
            name: shapes[kind][group].num_words
            for kind, sections in TABLE_SECTIONS.items()
            if kind in shapes
            for group, name in sections.items()
            if group in shapes[kind]
        }
        rows: tuple[Section, ...] = (FIRST_SECTIONS[LoraKind.NONE], "sources", "positions")
        sampled: dict[Section, int] = {"sampled_rows": bucket.num_sampled} if bucket.num_prefills > 1 else {}
        assist: dict[Section, int] = {"assist": NUM_STEP_WORDS}
        return tables | assist | dict.fromkeys(rows, bucket.num_rows) | sampled

    def write(self, plan: StepPlan, logit_rows: Mapping[Sequence, int]) -> None:
        """Writes the rows of a step. ``logit_rows``: the rows in which the step before sampled the tokens in flight."""
        token_ids, positions, sources = (self._buffer.array(name) for name in ("token_ids", "positions", "sources"))
        sources.fill(-1)
        token_ids.fill(0)
        positions.fill(0)
        num_prefill_rows = self.bucket.num_prefill_rows
        bounds = prefill_rows(plan, self.bucket)
        for chunk, start, end in zip(plan.prefills, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            token_ids[start:end] = chunk.sequence.token_ids[chunk.start : chunk.end]
            positions[start:end] = np.arange(chunk.start, chunk.end, dtype=np.int32) + chunk.sequence.rotary_start
        self._write_sampled_rows(bounds)
        decodes = slice(num_prefill_rows, num_prefill_rows + len(plan.decodes))
        token_ids[decodes] = [0 if sequence.num_in_flight else sequence.token_ids[-1] for sequence in plan.decodes]
        sources[decodes] = [logit_rows[sequence] if sequence.num_in_flight else -1 for sequence in plan.decodes]
        positions[decodes] = [sequence.rotary_start + sequence.num_cached for sequence in plan.decodes]

    def _write_sampled_rows(self, bounds: Indices) -> None:
        """Prefills' last rows; for those that the step lacks the row before all decodes, which is always there."""
        if self.sampled_rows is not None:
            self._sampled[: self.bucket.num_prefills] = self.bucket.num_prefill_rows - 1
            self._sampled[: len(bounds) - 1] = bounds[1:] - 1
            self._buffer.write("sampled_rows", self._sampled)

    def write_lora(self, plan: StepPlan, pages_of: PagesOf, kind: LoraKind) -> None:
        """Writes which rows use which pages, into the tables of this kind. Decodes that go on alike change nothing."""
        segments = build_segments(plan, self.bucket.num_prefill_rows)
        owned = [pages_of(digest) if digest else {} for digest in segments.digests]
        content = (segments.indptr, owned, self._sampled.tobytes())
        if content == self._written.pop(kind, None):
            self._written[kind] = content
            return
        for group, shape in self._shapes.get(kind, {}).items():
            pages = [own.get(group, []) for own in owned]
            indptr = segments.rows_among(self._sampled) if group == "head" else segments.indptr
            shape.fill(self._buffer.array(TABLE_SECTIONS[kind][group]), indptr, pages)
        self._written[kind] = content
