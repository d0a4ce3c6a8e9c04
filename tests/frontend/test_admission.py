import asyncio

import pytest

from punica_frontend.admission import Admission
from punica_serve.errors import ClusterUnavailable


async def test_it_is_empty_once_the_last_has_left() -> None:
    admission = Admission()
    await asyncio.wait_for(admission.empty(), 30)
    admission.enter()
    admission.enter()
    waiting = asyncio.create_task(admission.empty())
    admission.leave()
    await asyncio.sleep(0)
    assert not waiting.done()
    admission.leave()
    await asyncio.wait_for(waiting, 30)


def test_closed_it_lets_nobody_in() -> None:
    admission = Admission()
    admission.enter()
    admission.close()
    with pytest.raises(ClusterUnavailable, match="try another"):
        admission.enter()
    assert not admission.is_open
