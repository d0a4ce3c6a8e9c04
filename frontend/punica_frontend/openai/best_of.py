"""The likeliest of several answers. Pure."""

from collections.abc import Sequence

import msgspec

from punica_frontend.answers import Answer


def best_of_each(answers: Sequence[Answer], *, num_drawn: int, num_wanted: int) -> list[Answer]:
    """Of each ``num_drawn`` answers in turn, the ``num_wanted`` with the highest logprob per token, best first."""
    groups = (answers[start : start + num_drawn] for start in range(0, len(answers), num_drawn))
    return [answer for group in groups for answer in sorted(group, key=mean_logprob, reverse=True)[:num_wanted]]


def mean_logprob(answer: Answer) -> float:
    """Of its tokens; it must have their logprobs."""
    assert not isinstance(answer.logprobs, msgspec.UnsetType)
    return sum(entry.logprob for entry in answer.logprobs) / max(1, len(answer.logprobs))
