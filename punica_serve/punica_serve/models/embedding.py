"""The embedding of tokens, divided by vocabulary among the ranks of a group."""

import torch
from torch import Tensor
from torch.nn import functional

from punica_serve.models.collectives import Collectives
from punica_serve.models.linear import LoraBatch


class Embedding:
    """Each rank embeds the tokens of its own vocabulary as they are and all others as zeros; the sum has all."""

    def __init__(self, weight: Tensor, vocabulary: range, scale: float | None, collectives: Collectives) -> None:
        """``weight``: [tokens of the vocabulary, hidden]. ``scale``: of the embeddings; None is 1."""
        self._weight = weight
        self._vocabulary = vocabulary
        self._scale = _rounded(scale, weight.dtype)
        self._collectives = collectives

    def __call__(self, token_ids: Tensor, lora: LoraBatch) -> Tensor:
        """Integers [rows] -> [rows, hidden], which the caller may overwrite."""
        is_whole = self._collectives.rank.size == 1
        embedded = functional.embedding(token_ids, self._weight) if is_whole else self._embed_own(token_ids)
        lora.add_to_embedding(token_ids, embedded)
        if not is_whole:
            embedded = self._collectives.all_reduce(embedded)
        return embedded if self._scale is None else embedded.mul_(self._scale)

    def _embed_own(self, token_ids: Tensor) -> Tensor:
        rows = token_ids - self._vocabulary.start
        others = (rows < 0) | (rows >= len(self._vocabulary))
        return functional.embedding(rows.masked_fill_(others, 0), self._weight).masked_fill_(others[:, None], 0)


def _rounded(scale: float | None, dtype: torch.dtype) -> float | None:
    """The nearest number of that dtype: Gemma was trained with its embeddings' scale rounded."""
    return None if scale is None else torch.tensor(scale, dtype=dtype).item()
