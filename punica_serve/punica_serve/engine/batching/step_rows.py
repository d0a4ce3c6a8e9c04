"""The rows of a CPU's step: token ids, positions, and where adapters begin. Built once, read by every layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from punica_serve.engine.batching.step_planner import StepPlan


@dataclass(frozen=True, slots=True)
class BatchLen:
    """How the rows divide: prefills first, decodes after (Punica, section 6)."""

    #: Row where each prefill starts; at most one prefill a step.
    prefill_starts: tuple[int, ...]
    num_prefill_rows: int
    num_decodes: int

    @property
    def num_rows(self) -> int:
        return self.num_prefill_rows + self.num_decodes


@dataclass(frozen=True, slots=True)
class Segments:
    """Runs of rows that share an adapter; a prefill and the decodes of its adapter form one."""

    #: Row where each segment starts, and the number of rows at the end.
    indptr: tuple[int, ...]
    #: Digest of each segment's adapter; None is the base model.
    digests: tuple[str | None, ...]

    def rows_from(self, first_row: int) -> tuple[int, ...]:
        """``indptr`` among the rows from ``first_row`` on; segments before it are empty."""
        return tuple(max(0, row - first_row) for row in self.indptr)


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one model invocation."""

    batch_len: BatchLen
    segments: Segments
    #: int64 [rows]
    token_ids: Tensor
    #: int64 [rows]: index of each token in its request.
    positions: Tensor
    #: int64 [rows]: the same, from each request's ``Sequence.rotary_start`` on.
    rotary_positions: Tensor
    #: int64 [sampled]: the rows whose logits are wanted, in the order of StepPlan.sampled.
    sampled_rows: Tensor


def build_rows(plan: StepPlan, device: torch.device) -> StepRows:
    """Lays a plan out in rows."""
    chunk = plan.prefill
    prefill_ids = chunk.sequence.token_ids[chunk.start : chunk.end] if chunk else []
    prefill_positions = range(chunk.start, chunk.end) if chunk else range(0)
    num_prefill = len(prefill_ids)
    decode_ids = [sequence.token_ids[-1] for sequence in plan.decodes]
    decode_positions = [sequence.num_cached for sequence in plan.decodes]
    first_sampled = num_prefill - 1 if chunk and chunk.is_last else num_prefill
    num_rows = num_prefill + len(plan.decodes)
    starts = [chunk.sequence.rotary_start] * num_prefill if chunk else []
    starts += [sequence.rotary_start for sequence in plan.decodes]
    positions = torch.tensor([*prefill_positions, *decode_positions], dtype=torch.int64, device=device)
    return StepRows(
        batch_len=BatchLen((0,) if chunk else (), num_prefill, len(plan.decodes)),
        segments=build_segments(plan),
        token_ids=torch.tensor([*prefill_ids, *decode_ids], dtype=torch.int64, device=device),
        positions=positions,
        rotary_positions=positions + torch.tensor(starts, dtype=torch.int64, device=device),
        sampled_rows=torch.arange(first_sampled, num_rows, device=device),
    )


def build_segments(plan: StepPlan, num_prefill_rows: int | None = None) -> Segments:
    """Merges neighbouring rows of one adapter. ``num_prefill_rows``: the rows of a prefill padded in front."""
    runs: list[tuple[str | None, int]] = []
    if plan.prefill:
        if num_prefill_rows is not None and num_prefill_rows > plan.prefill.num_tokens:
            runs.append((None, num_prefill_rows - plan.prefill.num_tokens))
        runs.append((plan.prefill.sequence.digest, plan.prefill.num_tokens))
    runs.extend((sequence.digest, 1) for sequence in plan.decodes)
    indptr: list[int] = [0]
    digests: list[str | None] = []
    for digest, num_rows in runs:
        if digests and digests[-1] == digest:
            indptr[-1] += num_rows
        else:
            digests.append(digest)
            indptr.append(indptr[-1] + num_rows)
    return Segments(tuple(indptr), tuple(digests))
