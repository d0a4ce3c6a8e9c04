"""Token ids, positions and LoRA tables of a step, as words for the device.

The rows of a prefill end where its shape's do, and what pads it comes first: so its last row is the same in every step
of a shape, and the decodes of its adapter are next to it.
"""

from collections.abc import Mapping

import numpy as np

from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_serve.engine.batch import build_segments
from punica_serve.engine.lora_batch import PagesOf
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.sequence import Sequence
from punica_serve.engine.step_shape import StepShape
from punica_serve.engine.step_words import StepWords
from punica_serve.lora_layout import LORA_GROUPS
from punica_serve.protocol import LoraGroup

#: The part that follows the LoRA tables: a step without LoRA needs nothing before it.
FIRST_BEHIND_LORA = "token_ids"


class StepInputs:
    """The inputs of one step shape, in parts of its words."""

    def __init__(self, shape: StepShape, table_shape: LoraTableShape, words: StepWords) -> None:
        self.shape = shape
        self._table_shape = table_shape
        self._words = words
        self.token_ids, self.positions = words.device("token_ids"), words.device("positions")
        #: Row of the step before whose draw is the token; -1: it is in ``token_ids``.
        self.sources = words.device("sources")
        self.tables: dict[LoraGroup, LoraTable] = {
            group: LoraTable(words.device(group), table_shape) for group in LORA_GROUPS
        }

    @staticmethod
    def parts(shape: StepShape, table_shape: LoraTableShape) -> dict[str, int]:
        """The words that it takes, those of LoRA first."""
        tables: dict[str, int] = dict.fromkeys(LORA_GROUPS, table_shape.num_words)
        return tables | dict.fromkeys((FIRST_BEHIND_LORA, "sources", "positions"), shape.num_rows)

    def write(self, plan: StepPlan, draw_rows: Mapping[Sequence, int]) -> None:
        """Writes the rows of a step. ``draw_rows``: where the tokens in flight were drawn."""
        token_ids, positions, sources = (self._words.words(name) for name in ("token_ids", "positions", "sources"))
        sources.fill(-1)
        token_ids.fill(0)
        positions.fill(0)
        num_prefill_rows = self.shape.num_prefill_rows
        if chunk := plan.prefill:
            rows = slice(num_prefill_rows - chunk.num_tokens, num_prefill_rows)
            token_ids[rows] = chunk.sequence.token_ids[chunk.start : chunk.end]
            positions[rows] = np.arange(chunk.start, chunk.end, dtype=np.int32)
        decodes = slice(num_prefill_rows, num_prefill_rows + len(plan.decodes))
        token_ids[decodes] = [0 if sequence.num_in_flight else sequence.token_ids[-1] for sequence in plan.decodes]
        sources[decodes] = [draw_rows[sequence] if sequence.num_in_flight else -1 for sequence in plan.decodes]
        positions[decodes] = [sequence.num_cached for sequence in plan.decodes]

    def write_lora(self, plan: StepPlan, pages_of: PagesOf) -> None:
        """Writes which of these rows use which pages. A step whose program has no LoRA does without."""
        segments = build_segments(plan, self.shape.num_prefill_rows)
        owned = [pages_of(digest) if digest else {} for digest in segments.digests]
        for group in LORA_GROUPS:
            pages = [own.get(group, []) for own in owned]
            self._table_shape.fill(self._words.words(group), segments.indptr, pages)
