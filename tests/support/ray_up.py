"""`punica-serve up --ray`, as a test sees it."""

import re
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import httpx

from waits import until


class RayUp:
    """`punica-serve up --ray` on a test cluster."""

    def __init__(self, up: Process, log: Path) -> None:
        self.up = up
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    @property
    def frontends(self) -> dict[str, str]:
        """By name, the URLs of the streams."""
        urls = re.findall(r"the (frontend) is on node \w+, at (http://\S+)", self.log())
        return {name: f"{url.replace('http', 'ws', 1)}/v1/generate/stream" for name, url in urls}

    @property
    def scheduler_nodes(self) -> list[str]:
        """Node ids, from the first on."""
        return re.findall(r"the scheduler is on node (\w+), at", self.log())

    async def gpus(self) -> list[Any]:
        """The GPUs in /v1/cluster; none while it does not answer."""
        (url,) = self.frontends.values()
        async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
            try:
                answer = await client.get(f"{url.replace('ws', 'http', 1).removesuffix('/generate/stream')}/cluster")
                gpus: list[Any] = answer.raise_for_status().json()["gpus"]
            except httpx.HTTPError:
                return []
        return gpus

    async def is_idle(self) -> bool:
        gpus = await self.gpus()
        return bool(gpus) and all(gpu["free_kv_pages"] == gpu["gpu"]["num_kv_pages"] for gpu in gpus)

    async def until_ready(self, num_gpus: int) -> None:
        await until(self._listens, "Ray has placed the frontend", describe=self.log)

        async def have_joined() -> bool:
            return len(await self.gpus()) == num_gpus

        await until(have_joined, f"{num_gpus} GPUs have joined", describe=self.log)

    def _listens(self) -> bool:
        assert self.up.returncode is None, self.log()
        return bool(self.frontends)
