"""What a step tells the device, side by side as 32-bit words, so that it takes one copy however many tables there are.

The words are written on the host into pinned memory and copied as a whole; the device's names are views of the copy,
at fixed addresses, as CUDA graphs need it.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Int32s = npt.NDArray[np.int32]

#: Words are laid out in blocks of this many, so that every part starts at a cache line.
_ALIGNMENT_WORDS = 32


class StepWords:
    """int32 parts of fixed sizes, in order. The last may be used in part, and then only that is copied."""

    def __init__(self, parts: Mapping[str, int], device: torch.device) -> None:
        """``parts``: how many words each has."""
        self._places, num_words = _lay_out(parts)
        self._last = list(parts)[-1]
        self._end = num_words
        self._host = torch.zeros(num_words, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros(num_words, dtype=torch.int32, device=device)
        self._words: Int32s = self._host.numpy()

    def host(self, name: str) -> Tensor:
        """A part in pinned memory."""
        return self._host[self._places[name]]

    def words(self, name: str) -> Int32s:
        """The same for numpy."""
        return self._words[self._places[name]]

    def device(self, name: str) -> Tensor:
        """A part where kernels read it, once ``queue`` has copied it."""
        return self._device[self._places[name]]

    def write(self, name: str, words: Int32s) -> None:
        """Replaces the first words of a part; of the last part, no others are copied. ValueError: too many words.

        The copy of the step before must have ended: the words are its source.
        """
        self.words(name)[: len(words)] = words
        if name == self._last:
            self._end = self._places[name].start + len(words)

    def queue(self, first: str | None = None) -> None:
        """Queues the copy on the current stream; of what lies before the part ``first``, nothing."""
        start = self._places[first].start if first is not None else 0
        self._device[start : self._end].copy_(self._host[start : self._end], non_blocking=True)


def _lay_out(parts: Mapping[str, int]) -> tuple[dict[str, slice], int]:
    """Where each part goes, aligned, and how many words there are in all."""
    places: dict[str, slice] = {}
    end = 0
    for name, num_words in parts.items():
        places[name] = slice(end, end + num_words)
        end += -(-num_words // _ALIGNMENT_WORDS) * _ALIGNMENT_WORDS
    return places, end
