"""The scheduler's scale advice, as read from the frontends."""

import logging
from collections.abc import Sequence

import httpx

from punica_serve.links.client_errors import wants_key
from punica_serve.protocol import ScaleAdvice

log = logging.getLogger(__name__)


class Adviser:
    """Keeps the newest advice while no frontend answers."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.advice = ScaleAdvice()
        #: GPUs that have joined the scheduler.
        self.num_gpus = 0
        self._was_refused = False

    async def ask(self, urls: Sequence[str]) -> None:
        """Asks these frontends in turn until one answers."""
        for url in urls:
            try:
                answer = await self._client.get(f"{url}/v1/cluster")
                if answer.status_code == httpx.codes.UNAUTHORIZED:
                    self._note_refusal(url)
                    continue
                self._take(answer)
                return
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                continue

    def _take(self, answer: httpx.Response) -> None:
        """Raises httpx.HTTPError, ValueError, KeyError or TypeError if the answer is not a cluster's state."""
        cluster = answer.raise_for_status().json()
        advice = cluster["advice"]
        self.advice = ScaleAdvice(advice["num_more_gpus"], tuple(advice["releasable_runners"]))
        self.num_gpus = len(cluster["gpus"])

    def _note_refusal(self, url: str) -> None:
        """Logs a refusal, since everything else works without a key and nobody would notice."""
        if not self._was_refused:
            log.warning("%s; give a key with `--key`, or nodes are neither requested nor released", wants_key(url))
        self._was_refused = True
