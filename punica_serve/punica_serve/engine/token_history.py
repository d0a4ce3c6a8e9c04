"""The tokens of requests with penalties, counted on the device, where the newest tokens are known first."""

from collections.abc import Sequence as Series

import torch
from torch import Tensor

from punica_kernels.sampling import apply_penalties
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.memory.device_memory import reserving
from punica_serve.engine.transfers import to_device
from punica_serve.numbers import counted
from punica_serve.protocol import SamplingParams


def has_penalty(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


class TokenHistories:
    """One row of counts for each request with penalties in the newest step.

    A request's counts are read from the host again in two cases: it was not in the step before, so the host knows all
    its tokens; or it samples the same position again, since it was preempted while that token was in flight.
    """

    def __init__(self, vocabulary: range, max_requests: int, device: torch.device) -> None:
        """``vocabulary``: the token ids that are counted: all, or a rank's share."""
        self._vocabulary = vocabulary
        self._max_requests = max_requests
        self._device = device
        #: (row, index of the generated token that it samples next).
        self._places: dict[Sequence, tuple[int, int]] = {}
        shape = (max_requests, len(vocabulary))
        num_bytes = max_requests * len(vocabulary) * (torch.bool.itemsize + torch.int32.itemsize)
        what = f"the table of tokens of {counted(max_requests, 'request')}"
        fix, param = "lower `engine.max_batch_size`", "engine.max_batch_size"
        with reserving(what, num_bytes, device, fix=fix, param=param, count=max_requests):
            self._prompts = torch.zeros(shape, dtype=torch.bool, device=device)
            self._outputs = torch.zeros(shape, dtype=torch.int32, device=device)

    def follow(self, sequences: Series[Sequence]) -> Tensor:
        """Int64 [sequences]: their rows in this step, in order. All other requests are forgotten."""
        places: dict[Sequence, int] = {}
        for sequence in sequences:
            place, position = self._places.get(sequence, (0, -1))
            if position == sequence.position:
                places[sequence] = place
        taken = set(places.values())
        free = (place for place in range(self._max_requests) if place not in taken)
        for sequence in sequences:
            if sequence not in places:
                places[sequence] = next(free)
                self._write(places[sequence], sequence)
        self._places = {sequence: (place, sequence.position + 1) for sequence, place in places.items()}
        return to_device([places[sequence] for sequence in sequences], torch.int64, self._device)

    def forget(self) -> None:
        """Forgets all requests, for a step without penalties."""
        self._places.clear()

    def penalize(self, logits: Tensor, places: Tensor, params: Series[SamplingParams]) -> None:
        """Penalises, in place, float32 logits [places, tokens of the vocabulary]."""
        apply_penalties(
            logits,
            self._prompts[places],
            self._outputs[places],
            repetition=to_device([p.repetition_penalty for p in params], torch.float32, self._device),
            presence=to_device([p.presence_penalty for p in params], torch.float32, self._device),
            frequency=to_device([p.frequency_penalty for p in params], torch.float32, self._device),
        )

    def count(self, places: Tensor, tokens: Tensor) -> None:
        """Counts the sampled tokens of the rows, int64 [places]; -1 is a row that failed."""
        columns = tokens - self._vocabulary.start
        last = len(self._vocabulary) - 1
        self._outputs[places, columns.clamp(0, last)] += (columns >= 0) & (columns <= last)

    def _write(self, place: int, sequence: Sequence) -> None:
        self._prompts[place] = self._counts(sequence.request.prompt_ids) > 0
        self._outputs[place] = self._counts(sequence.generated_ids)

    def _counts(self, token_ids: Series[int]) -> Tensor:
        """How often each token occurs: int32 [tokens of the vocabulary]."""
        first, end = self._vocabulary.start, self._vocabulary.stop
        counts = torch.bincount(torch.tensor(token_ids, dtype=torch.int64), minlength=end)[first:end]
        if self._device.type == "cuda":
            return counts.int().pin_memory().to(self._device, non_blocking=True)
        return counts.int()
