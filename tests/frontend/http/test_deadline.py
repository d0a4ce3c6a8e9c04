import asyncio

from punica_frontend.http.deadline import Deadline
from waits import DEADLINE_S


async def test_a_deadline_that_has_started_goes_on_where_it_was() -> None:
    fired = asyncio.Event()
    deadline = Deadline(asyncio.get_running_loop(), 0.001, fired.set)
    deadline.start()
    timer = deadline._timer
    deadline.start()
    assert deadline._timer is timer
    deadline.cancel()
    deadline.start()
    await asyncio.wait_for(fired.wait(), DEADLINE_S)
