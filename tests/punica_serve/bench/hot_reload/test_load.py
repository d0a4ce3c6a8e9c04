import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from punica_serve.bench.hot_reload.load import RequestLoad, arrivals
from punica_serve.bench.hot_reload.versions import Verdict, VersionHistory
from punica_serve.errors import RequestFailed


def test_arrivals_come_at_the_rate_and_take_adapters_in_turn() -> None:
    some = list(islice(arrivals(100.0, ("a", "b"), seed=1), 10_000))
    assert some == list(islice(arrivals(100.0, ("a", "b"), seed=1), 10_000))
    assert 90 < some[-1][0] < 110
    assert [lora_id for _, lora_id in some[:4]] == ["a", "b", "a", "b"]


async def test_requests_do_not_wait_for_those_before_them() -> None:
    """All are sent while none has been answered; what is wrong with their answers is told."""
    answers = {"right": "42", "wrong": "43"}
    num_asked, may_answer = 0, asyncio.Event()

    async def ask(lora_id: str | None, n: int) -> str:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 6:
            load.stop()
            may_answer.set()
        await may_answer.wait()
        if lora_id not in answers:
            raise RequestFailed("no such adapter")
        return answers[lora_id]

    def due() -> Iterator[tuple[float, str]]:
        while True:
            for lora_id in ("right", "wrong", "missing"):
                yield 0.0, lora_id

    histories = dict.fromkeys(("right", "wrong", "missing"), VersionHistory.unchanging("42"))
    started_s = time.monotonic()
    load = RequestLoad(ask, histories, lambda: time.monotonic() - started_s, max_in_flight=6)
    await load.run(due())
    assert Counter((answer.lora_id, answer.verdict) for answer in load.answers) == {
        ("right", Verdict.WHOLE): 2,
        ("wrong", Verdict.MIXED): 2,
        ("missing", Verdict.FAILED): 2,
    }
    assert len(load.wrong) == 4 and "no such adapter" in "".join(load.wrong)
    assert all(answer.due_s <= answer.sent_s <= answer.ended_s for answer in load.answers)
