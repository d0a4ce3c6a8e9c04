from collections import Counter
from dataclasses import replace
from typing import cast

from punica_serve.bench.control_plane.frontends import ArrivedTokens, Frontend
from punica_serve.bench.control_plane.settings import ControlPlaneSettings, LoadSettings
from punica_serve.links.channel import Channel
from punica_serve.protocol import AddRequest, Message

NUM_REQUESTS = 6_000
SETTINGS = replace(ControlPlaneSettings(), num_gpus=NUM_REQUESTS // 10, batch_size=10, num_frontends=1)


class Sent:
    """As much of a channel as adding requests takes."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, message: Message) -> None:
        self.messages.append(message)


def answers(num_added: int, *, has_churn: bool) -> list[int]:
    """How many tokens the answers of a frontend's first requests have."""
    frontend = Frontend(LoadSettings(SETTINGS, "ws://nowhere", "token", has_churn), 0, ArrivedTokens())
    sent = Sent()
    for _ in range(num_added):
        frontend.add(cast(Channel, sent))
    return [message.request.sampling.max_tokens for message in sent.messages if isinstance(message, AddRequest)]


def test_under_churn_as_many_requests_end_in_the_first_steps_as_in_later_ones() -> None:
    """Before any of the later requests can end, which takes 100 steps, one in 200 of all does at each."""
    counts = Counter((tokens - 1) // 20 for tokens in answers(NUM_REQUESTS, has_churn=True))
    assert all(abs(counts[twenty] - NUM_REQUESTS / 10) < 100 for twenty in range(5)), counts
    assert max(counts) == 14, "none is longer than an answer"


def test_requests_after_the_start_have_whole_answers() -> None:
    later = answers(2 * NUM_REQUESTS, has_churn=True)[NUM_REQUESTS:]
    assert (min(later), max(later)) == (100, 300)
    assert abs(sum(later) / len(later) - 200) < 3


def test_without_churn_no_answer_ends() -> None:
    assert set(answers(10, has_churn=False)) == {SETTINGS.endless_tokens}
