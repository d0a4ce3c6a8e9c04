import asyncio

from punica_frontend.generation.reader_queue import ReaderQueue


async def test_items_come_in_the_order_in_which_they_were_put() -> None:
    queue = ReaderQueue[int]()
    for index in (2, 0, 2):
        queue.put(index)
    assert [await queue.next() for _ in range(3)] == [2, 0, 2]
    reading = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    queue.put(1)
    queue.put(0)
    assert await reading == 1 and await queue.next() == 0


async def test_a_reader_that_leaves_takes_nothing_with_it() -> None:
    queue = ReaderQueue[int]()
    reading = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    reading.cancel()
    queue.put(5)
    await asyncio.wait([reading])
    queue.put(6)
    assert [await queue.next(), await queue.next()] == [5, 6]


async def test_a_reader_waits_from_when_nothing_is_left_until_it_is_woken() -> None:
    queue = ReaderQueue[int]()
    queue.put(1)
    assert await queue.next() == 1 and not queue.has_waiting_reader
    reading = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    assert queue.has_waiting_reader
    queue.put(2)
    assert not queue.has_waiting_reader, "it has 2 to take, before anything that comes now"
    assert await reading == 2
    reading = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert not queue.has_waiting_reader
