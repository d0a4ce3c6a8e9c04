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


async def test_output_is_taken_directly_only_while_the_reader_waits() -> None:
    taken: list[int] = []

    def take(index: int) -> bool:
        taken.append(index)
        return index < 9

    ready = ReadyStreams(take)
    ready.marker(1)()
    assert await ready.next() == 1 and not taken, "nobody waited"
    reading = asyncio.create_task(ready.next())
    await asyncio.sleep(0)
    for index in (2, 3, 9, 4):
        ready.marker(index)()
    assert await reading == 9 and taken == [2, 3, 9], "the reader was woken for 9, and has 4 still to take"
    assert await ready.next() == 4
