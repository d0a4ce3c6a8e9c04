"""The integer inputs of a step, packed side by side: one copy to the device, however many tables there are.

The host writes int32 sections into pinned memory, which is copied as a whole. The device's views of the copy have fixed
addresses, as CUDA graphs need.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from punica_serve.base_model.lora_layout import LoraKind
from punica_serve.protocol import LoraGroup

Int32s = npt.NDArray[np.int32]

#: Sections start at multiples of this many words: at a cache line.
_ALIGNMENT_WORDS = 32


#: The sections of a step, for the code that writes them and the code that hands them to kernels: the LoRA table of each
#: group, the words of exchanges with CPU processes (``CudaExchange``), the rows (``StepInputs``), and the tables of
#: attention (``CudaAttention``).
Section = (
    LoraGroup
    | Literal["wide_qkv", "wide_o", "wide_gate_up", "wide_down", "wide_embed", "wide_head"]
    | Literal["assist", "token_ids", "sources", "positions", "sampled_rows"]
    | Literal[
        "slot_mapping", "decode_tiles", "prefill_tiles", "second_decode_tiles", "second_prefill_tiles", "kv_pages"
    ]
)

#: The section of each group's table, by the step's kind of LoRA. The largest tables come first, then the others, so
#: that a step copies from the first that it needs on.
TABLE_SECTIONS: Mapping[LoraKind, Mapping[LoraGroup, Section]] = {
    LoraKind.WIDE: {
        **{"qkv": "wide_qkv", "o": "wide_o", "gate_up": "wide_gate_up", "down": "wide_down"},
        **{"embed": "wide_embed", "head": "wide_head"},
    },
    LoraKind.USUAL: {"qkv": "qkv", "o": "o", "gate_up": "gate_up", "down": "down"},
}
#: The first section that a step copies.
FIRST_SECTIONS: Mapping[LoraKind, Section] = {
    LoraKind.WIDE: "wide_qkv",
    LoraKind.USUAL: "qkv",
    LoraKind.NONE: "token_ids",
}


class StepInputBuffer:
    """Sections of fixed sizes, in order. The last one may be filled in part, and then only that is copied."""

    def __init__(self, sections: Mapping[Section, int], device: torch.device) -> None:
        """``sections``: the words of each."""
        self._places, num_words = _lay_out(sections)
        self._last = list(sections)[-1]
        self._end = num_words
        self._host = torch.zeros(num_words, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros(num_words, dtype=torch.int32, device=device)
        self._words: Int32s = self._host.numpy()

    def array(self, name: Section) -> Int32s:
        """A section in pinned memory, for the host to write."""
        return self._words[self._places[name]]

    def device(self, name: Section) -> Tensor:
        """A section on the device, where kernels read it after ``copy_to_device``."""
        return self._device[self._places[name]]

    def write(self, name: Section, words: Int32s) -> None:
        """Replaces the first words of a section; of the last one, only these are copied. ValueError: too many words.

        The copy of the step before must have ended, since this memory is its source.
        """
        self.array(name)[: len(words)] = words
        if name == self._last:
            self._end = self._places[name].start + len(words)

    def copy_to_device(self, first: Section | None = None) -> None:
        """Queues the copy on the current stream, from the section ``first`` on; all of it by default."""
        start = self._places[first].start if first is not None else 0
        self._device[start : self._end].copy_(self._host[start : self._end], non_blocking=True)


def _lay_out(sections: Mapping[Section, int]) -> tuple[dict[Section, slice], int]:
    """The place of each section, aligned, and the number of words in all."""
    places: dict[Section, slice] = {}
    end = 0
    for name, num_words in sections.items():
        places[name] = slice(end, end + num_words)
        end += -(-num_words // _ALIGNMENT_WORDS) * _ALIGNMENT_WORDS
    return places, end
