import asyncio

import pytest

from punica_frontend.generation.admission import Admission
from punica_serve.errors import ClusterUnavailable
from waits import DEADLINE_S


async def test_it_is_empty_once_the_last_has_left() -> None:
    admission = Admission()
    await asyncio.wait_for(admission.empty(), DEADLINE_S)
    admission.enter()
    admission.enter()
    waiting = asyncio.create_task(admission.empty())
    admission.leave()
    await asyncio.sleep(0)
    assert not waiting.done()
    admission.leave()
    await asyncio.wait_for(waiting, DEADLINE_S)


def test_closed_it_admits_no_request() -> None:
    admission = Admission()
    admission.enter()
    admission.close()
    with pytest.raises(ClusterUnavailable, match="try another"):
        admission.enter()
    assert not admission.is_open
