"""What a step tells the device, in one copy: token ids, positions and the LoRA tables, side by side as 32-bit words.

The words are written on the host into pinned memory and copied as a whole; the device's names are views of the copy.
"""

from collections.abc import Mapping

import numpy as np
import torch

from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_serve.engine.batch import build_segments
from punica_serve.engine.lora_batch import PagesOf
from punica_serve.engine.pinned_words import PinnedWords
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.sequence import Sequence
from punica_serve.engine.step_pages import Int32s
from punica_serve.engine.step_shape import StepShape
from punica_serve.lora_layout import LORA_GROUPS
from punica_serve.protocol import LoraGroup

#: Words are laid out in blocks of this many, so that every part starts at a cache line.
_ALIGNMENT_WORDS = 32


class StepInputs:
    """The inputs of one step shape. The device's tensors stay where they are, as CUDA graphs need it."""

    def __init__(self, shape: StepShape, table_shape: LoraTableShape | None, device: torch.device) -> None:
        self.shape = shape
        parts = {"token_ids": shape.num_rows, "sources": shape.num_rows, "positions": shape.num_rows, "last_row": 1}
        if table_shape is not None:
            parts.update(dict.fromkeys(LORA_GROUPS, table_shape.num_words))
        places, num_words = _lay_out(parts)
        self._all_words = PinnedWords(num_words, device)
        host = self._all_words.host.numpy()
        self._words: dict[str, Int32s] = {name: host[at] for name, at in places.items()}
        views = {name: self._all_words.device[at] for name, at in places.items()}
        self.token_ids, self.positions = views["token_ids"], views["positions"]
        #: Row of the step before whose draw is the token; -1: it is in ``token_ids``.
        self.sources = views["sources"]
        #: The row after which the prefill's first token is drawn.
        self.last_row = views["last_row"]
        self._table_shape = table_shape
        self.tables: dict[LoraGroup, LoraTable] = (
            {group: LoraTable(views[group], table_shape) for group in LORA_GROUPS} if table_shape is not None else {}
        )

    def stage(self, plan: StepPlan, draw_rows: Mapping[Sequence, int], pages_of: PagesOf) -> None:
        """Writes a step and queues its copy. ``draw_rows``: where the tokens in flight were drawn.

        The copy of the step before must have ended: the words are its source.
        """
        self._write_rows(plan, draw_rows)
        if self._table_shape is not None:
            segments = build_segments(plan, self.shape.num_prefill_rows)
            owned = [pages_of(digest) if digest else {} for digest in segments.digests]
            for group in LORA_GROUPS:
                pages = [own.get(group, []) for own in owned]
                self._table_shape.fill(self._words[group], segments.indptr, pages)
        self._all_words.queue()

    def _write_rows(self, plan: StepPlan, draw_rows: Mapping[Sequence, int]) -> None:
        token_ids, positions, sources = (self._words[name] for name in ("token_ids", "positions", "sources"))
        sources.fill(-1)
        token_ids.fill(0)
        positions.fill(0)
        if chunk := plan.prefill:
            token_ids[: chunk.num_tokens] = chunk.sequence.token_ids[chunk.start : chunk.end]
            positions[: chunk.num_tokens] = np.arange(chunk.start, chunk.end, dtype=np.int32)
            self._words["last_row"][0] = chunk.num_tokens - 1
        decodes = slice(self.shape.num_prefill_rows, self.shape.num_prefill_rows + len(plan.decodes))
        token_ids[decodes] = [0 if sequence.num_in_flight else sequence.token_ids[-1] for sequence in plan.decodes]
        sources[decodes] = [draw_rows[sequence] if sequence.num_in_flight else -1 for sequence in plan.decodes]
        positions[decodes] = [sequence.num_cached for sequence in plan.decodes]


def _lay_out(parts: Mapping[str, int]) -> tuple[dict[str, slice], int]:
    """Where each part goes, aligned, and how many words there are in all."""
    places: dict[str, slice] = {}
    end = 0
    for name, num_words in parts.items():
        places[name] = slice(end, end + num_words)
        end += -(-num_words // _ALIGNMENT_WORDS) * _ALIGNMENT_WORDS
    return places, end
