import asyncio

from punica_frontend.generation.ready_streams import ReadyStreams


async def test_streams_come_in_the_order_in_which_they_became_ready() -> None:
    ready = ReadyStreams()
    for index in (2, 0, 2):
        ready.mark(index)
    assert [await ready.next() for _ in range(3)] == [2, 0, 2]
    reading = asyncio.create_task(ready.next())
    await asyncio.sleep(0)
    ready.mark(1)
    ready.mark(0)
    assert await reading == 1 and await ready.next() == 0


async def test_a_reader_that_leaves_takes_nothing_with_it() -> None:
    ready = ReadyStreams()
    reading = asyncio.create_task(ready.next())
    await asyncio.sleep(0)
    reading.cancel()
    ready.mark(5)
    await asyncio.wait([reading])
    ready.mark(6)
    assert [await ready.next(), await ready.next()] == [5, 6]


async def test_a_reader_waits_from_when_nothing_is_left_until_it_is_woken() -> None:
    ready = ReadyStreams()
    ready.mark(1)
    assert await ready.next() == 1 and not ready.has_waiting_reader
    reading = asyncio.create_task(ready.next())
    await asyncio.sleep(0)
    assert ready.has_waiting_reader
    ready.mark(2)
    assert not ready.has_waiting_reader, "it has 2 to take, before anything that comes now"
    assert await reading == 2
    reading = asyncio.create_task(ready.next())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert not ready.has_waiting_reader
