"""One question at a time, however many ask it."""

import asyncio

from punica_frontend.scheduler_link.single_flight import CachedCall, CoalescedCall


class Oracle:
    """Answers with the number of the question, when it is told to."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.may_answer = asyncio.Event()

    async def __call__(self) -> int:
        self.num_asked += 1
        number = self.num_asked
        await self.may_answer.wait()
        return number


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_come_while_it_is_on_its_way_share_the_next() -> None:
    oracle = Oracle()
    shared = CoalescedCall(oracle)
    first = asyncio.create_task(shared())
    await turns()
    others = [asyncio.create_task(shared()) for _ in range(100)]
    await turns()
    assert oracle.num_asked == 1
    oracle.may_answer.set()
    assert await first == 1 and await asyncio.gather(*others) == [2] * 100


async def test_one_who_leaves_takes_the_answer_from_nobody() -> None:
    oracle = Oracle()
    shared = CoalescedCall(oracle)
    leaving, staying = asyncio.create_task(shared()), asyncio.create_task(shared())
    await turns()
    leaving.cancel()
    oracle.may_answer.set()
    assert await staying == 1


async def test_an_error_is_for_those_who_asked_together() -> None:
    failing = True

    async def ask() -> str:
        if failing:
            raise LookupError
        return "yes"

    shared = CoalescedCall(ask)
    answers = await asyncio.gather(shared(), shared(), return_exceptions=True)
    assert [type(answer) for answer in answers] == [LookupError] * 2
    failing = False
    assert await shared() == "yes"


async def test_an_answer_is_kept_while_it_is_good() -> None:
    oracle = Oracle()
    oracle.may_answer.set()
    kept = CachedCall(oracle, good_for_s=1000.0)
    assert await asyncio.gather(*(kept() for _ in range(100))) == [1] * 100
    assert await kept() == 1


async def test_an_expired_result_is_computed_again_but_once_at_a_time() -> None:
    oracle = Oracle()
    kept = CachedCall(oracle, good_for_s=0.0)
    asking = [asyncio.create_task(kept())]
    await turns()
    asking.append(asyncio.create_task(kept()))
    await turns()
    assert oracle.num_asked == 1, "it is still on its way"
    asking.pop().cancel()
    oracle.may_answer.set()
    assert await asking[0] == 1 and await kept() == 2
