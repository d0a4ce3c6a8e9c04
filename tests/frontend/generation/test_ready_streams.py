import asyncio

from punica_frontend.generation.ready_streams import ReadyStreams


async def test_streams_come_in_the_order_in_which_they_became_ready() -> None:
    ready = ReadyStreams()
    marks = [ready.marker(index) for index in range(3)]
    for index in (2, 0, 2):
        marks[index]()
    assert [await ready.next() for _ in range(3)] == [2, 0, 2]
    reading = asyncio.create_task(ready.next())
    await asyncio.sleep(0)
    marks[1]()
    marks[0]()
    assert await reading == 1 and await ready.next() == 0


async def test_a_reader_that_leaves_takes_nothing_with_it() -> None:
    ready = ReadyStreams()
    reading = asyncio.create_task(ready.next())
    await asyncio.sleep(0)
    reading.cancel()
    ready.marker(5)()
    await asyncio.wait([reading])
    ready.marker(6)()
    assert [await ready.next(), await ready.next()] == [5, 6]
