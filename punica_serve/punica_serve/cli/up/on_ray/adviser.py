"""The scheduler's advice, as the frontends tell it."""

import logging
from collections.abc import Sequence

import httpx

from punica_serve.protocol import ScaleAdvice
from punica_serve.refusals import wants_key

log = logging.getLogger(__name__)


class Adviser:
    """While no frontend answers, the newest advice stands."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.advice = ScaleAdvice()
        #: That have joined the scheduler.
        self.num_gpus = 0
        self._was_refused = False

    async def ask(self, urls: Sequence[str]) -> None:
        """The first of these frontends that answers."""
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
        """Raises httpx.HTTPError, ValueError, KeyError or TypeError for what is not a cluster's view."""
        cluster = answer.raise_for_status().json()
        advice = cluster["advice"]
        self.advice = ScaleAdvice(advice["num_more_gpus"], tuple(advice["releasable_runners"]))
        self.num_gpus = len(cluster["gpus"])

    def _note_refusal(self, url: str) -> None:
        """Everything else goes on without a key, so nobody would notice."""
        if not self._was_refused:
            log.warning("%s; without one nodes are neither asked for nor released", wants_key(url))
        self._was_refused = True
