import asyncio

import pytest

from punica_frontend.scheduler_link import promise_reporter
from punica_frontend.scheduler_link.promise_reporter import PromiseReporter
from punica_serve.protocol import PromiseCounts, PromisesJudged
from waits import until

ONE = PromiseCounts(first_token_kept=1)


class Link:
    """Takes messages while it is up."""

    def __init__(self) -> None:
        self.is_up = True
        self.sent: list[PromisesJudged] = []

    def send(self, judged: PromisesJudged) -> bool:
        if self.is_up:
            self.sent.append(judged)
        return self.is_up


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    monkeypatch.setattr(promise_reporter, "INTERVAL_S", 0.02)
    return Link()


async def test_promises_of_an_interval_are_one_message(link: Link) -> None:
    reporter = PromiseReporter(link.send)
    for _ in range(5):
        reporter.add(ONE)
    assert link.sent == []
    await until(lambda: link.sent)
    assert link.sent == [PromisesJudged(PromiseCounts(5))]
    reporter.add(ONE)
    await until(lambda: len(link.sent) == 2)
    assert link.sent[1] == PromisesJudged(ONE)


async def test_nothing_is_sent_while_nothing_is_judged(link: Link) -> None:
    reporter = PromiseReporter(link.send)
    reporter.add(ONE)
    await until(lambda: link.sent)
    reporter.resume()
    await asyncio.sleep(0.1)
    assert link.sent == [PromisesJudged(ONE)]


async def test_without_a_link_they_wait_for_the_next_one(link: Link) -> None:
    link.is_up = False
    reporter = PromiseReporter(link.send)
    reporter.add(ONE)
    await asyncio.sleep(0.1)
    reporter.add(ONE)
    await asyncio.sleep(0.1)
    assert link.sent == []
    link.is_up = True
    reporter.resume()
    await until(lambda: link.sent)
    assert link.sent == [PromisesJudged(PromiseCounts(2))]


async def test_a_closed_one_sends_nothing(link: Link) -> None:
    reporter = PromiseReporter(link.send)
    reporter.add(ONE)
    reporter.close()
    await asyncio.sleep(0.1)
    assert link.sent == []
