"""The official client of OpenAI leaves the whole cluster in the middle of its answers. All else: tests/e2e/clients."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from up_cluster import Until, UpCluster


@pytest.fixture
async def async_client(cluster: UpCluster) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{cluster.url}/v1", max_retries=0, timeout=60) as client:
        yield client


async def test_a_client_that_leaves_gives_its_pages_back(
    cluster: UpCluster, async_client: openai.AsyncOpenAI, until: Until
) -> None:
    stream = await async_client.completions.create(
        model="roman", prompt="42", n=3, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    await anext(aiter(stream))
    await until(lambda: cluster.num_used_pages() > 0)
    await stream.close()
    await until(lambda: cluster.num_used_pages() == 0)
    whole = asyncio.create_task(
        async_client.completions.create(model="roman", prompt="42", max_tokens=900, extra_body={"ignore_eos": True})
    )
    await until(lambda: cluster.num_used_pages() > 0)
    whole.cancel()
    await until(lambda: cluster.num_used_pages() == 0)
