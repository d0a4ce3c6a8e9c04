"""Renders the chat templates of adapters in processes of their own: see ``punica_serve.text.template_worker``."""

import asyncio
import contextlib
import hashlib
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from punica_frontend.fair_slots import FairSlots, SlotLimits
from punica_serve.errors import AdapterRejected, InvalidRequest, OutOfCapacity
from punica_serve.text.template_job import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    TemplateAnswer,
    TemplateJob,
    body_bytes,
    frame,
)

#: For a turn, and for the rendering. The process ends itself long before, unless the machine is far too busy.
TIMEOUT_S = 30.0
#: A template that took too much is not tried again for so long: it would hold up everybody's every time.
BAN_S = 60.0
_MAX_BANS = 4_096

#: All that the process gets of this one's environment: no secrets.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT")


class TemplateRenderer:
    """A few processes, started when they are first needed. ``aclose`` ends them."""

    def __init__(self, special_tokens: Mapping[str, str], *, num_processes: int = 2) -> None:
        self._special_tokens = dict(special_tokens)
        self._idle: list[asyncio.subprocess.Process] = []
        self._turns = FairSlots(
            SlotLimits(num_processes, 1, TIMEOUT_S, "too many chat templates of adapters are being rendered")
        )
        #: Digests of templates -> until when they are not tried.
        self._bans: OrderedDict[str, float] = OrderedDict()

    async def render(
        self, source: str, messages: Sequence[Mapping[str, Any]], owner: str, *, add_generation_prompt: bool
    ) -> str:
        """The prompt of ``messages``. Raises InvalidRequest, or OutOfCapacity when it does not come to its turn.

        The templates of an ``owner``, a tenant, take turns with those of the others: so slow ones slow their own.
        """
        return await self._run(source, owner, [dict(message) for message in messages], add_generation_prompt)

    async def check(self, source: str, owner: str) -> None:
        """Raises AdapterRejected for what is no template, and OutOfCapacity when it does not come to its turn."""
        try:
            await self._run(source, owner, None, False)
        except InvalidRequest as error:
            raise AdapterRejected(error.message, param="chat_template") from None

    async def aclose(self) -> None:
        """Ends the processes. Nobody may be waiting for a prompt."""
        while self._idle:
            await _end(self._idle.pop())

    async def _run(
        self, source: str, owner: str, messages: list[dict[str, Any]] | None, add_generation_prompt: bool
    ) -> str:
        digest = hashlib.sha256(source.encode()).hexdigest()
        job = frame(TemplateJob(source, self._special_tokens, messages, add_generation_prompt))
        async with self._turns.slot(owner):
            self._check_not_banned(digest)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    answer = await self._answer(job)
            except TimeoutError:
                raise OutOfCapacity("chat templates of adapters take too long now; try again later") from None
        if answer is None:
            self._ban(digest)
            raise _too_much()
        if answer.error is not None:
            raise InvalidRequest(answer.error, param="messages")
        return answer.text

    async def _answer(self, job: bytes) -> TemplateAnswer | None:
        """None when the process did not live to tell."""
        process = self._idle.pop() if self._idle else await _start()
        try:
            answer = await _ask(process, job)
        except BaseException:
            await asyncio.shield(_end(process))
            raise
        if answer is None:
            await _end(process)
        else:
            self._idle.append(process)
        return answer

    def _check_not_banned(self, digest: str) -> None:
        if time.monotonic() < self._bans.get(digest, 0.0):
            raise _too_much()

    def _ban(self, digest: str) -> None:
        self._bans[digest] = time.monotonic() + BAN_S
        self._bans.move_to_end(digest)
        if len(self._bans) > _MAX_BANS:
            self._bans.popitem(last=False)


def _too_much() -> InvalidRequest:
    message = "the chat template of this adapter takes too much time or memory; send a prompt, or register another"
    return InvalidRequest(message, param="messages")


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "punica_serve.text.template_worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=MAX_FRAME_BYTES,
        env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
    )


async def _ask(process: asyncio.subprocess.Process, job: bytes) -> TemplateAnswer | None:
    assert process.stdin and process.stdout
    try:
        process.stdin.write(job)
        await process.stdin.drain()
        head = await process.stdout.readexactly(LENGTH_BYTES)
        body = await process.stdout.readexactly(body_bytes(head))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return msgspec.msgpack.decode(body, type=TemplateAnswer)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
