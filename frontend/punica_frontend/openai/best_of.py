"""Selects the likeliest of several answers. Pure."""

from collections.abc import Sequence

import msgspec

from punica_frontend.generation.answers import GenerateAnswer


def best_of_each(answers: Sequence[GenerateAnswer], *, num_drawn: int, num_wanted: int) -> list[GenerateAnswer]:
    """Returns the ``num_wanted`` best of each ``num_drawn`` answers, by mean logprob, best first."""
    groups = (answers[start : start + num_drawn] for start in range(0, len(answers), num_drawn))
    return [answer for group in groups for answer in sorted(group, key=mean_logprob, reverse=True)[:num_wanted]]


def mean_logprob(answer: GenerateAnswer) -> float:
    """Returns the mean of the answer's token logprobs, which it must have."""
    assert not isinstance(answer.logprobs, msgspec.UnsetType)
    return sum(entry.logprob for entry in answer.logprobs) / max(1, len(answer.logprobs))
