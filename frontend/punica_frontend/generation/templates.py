"""Renders adapters' chat templates, and tokenizes long prompts, in separate processes.

See ``punica_serve.text.template_worker``.
"""

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from punica_frontend.generation.fair_slots import FairSlots, SlotLimits
from punica_serve.errors import AdapterRejected, InvalidRequest, OutOfCapacity
from punica_serve.learned_types import learned
from punica_serve.process.limits import bare_environment, low_priority_command
from punica_serve.text.prompt_limits import PromptLimits
from punica_serve.text.template_job import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    Answer,
    EncodeJob,
    Job,
    Refused,
    Rendered,
    RenderJob,
    Text,
    TokenIds,
    TooLong,
    body_bytes,
    frame,
)

#: Deadline for a slot, and for the answer. The process limits itself well below it, unless the machine is overloaded.
TIMEOUT_S = 30.0
#: How long a template that exceeded its limits is not tried again; each try delays others.
BAN_S = 60.0
_MAX_BANS = 4_096

#: With one text at a time more threads would idle, yet count as the process's memory.
_NO_THREADS = {"TOKENIZERS_PARALLELISM": "false"}

_decode_answer = msgspec.msgpack.Decoder(learned(Answer)).decode


class TemplateRenderer:
    """A few worker processes, started on first use. ``aclose`` ends them."""

    def __init__(
        self, special_tokens: Mapping[str, str], tokenizer_folder: Path, limits: PromptLimits, *, num_processes: int = 2
    ) -> None:
        self._special_tokens = dict(special_tokens)
        self._tokenizer_folder = tokenizer_folder
        self._limits = limits
        self._idle: list[asyncio.subprocess.Process] = []
        self._turns = FairSlots(
            SlotLimits(num_processes, 1, TIMEOUT_S, "too many prompts are being rendered and tokenized")
        )
        #: (tenant, digest of a template) -> when that tenant may use it again. Its messages may be to blame, and other
        #: tenants may have the same template.
        self._bans: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def render(
        self,
        source: str,
        messages: Sequence[Mapping[str, Any]],
        tenant: str,
        *,
        add_generation_prompt: bool,
        add_special_tokens: bool = False,
    ) -> str | list[int]:
        """Returns the prompt of ``messages``: its text, or token ids if it has more than MAX_LOCAL_CHARS.

        Raises InvalidRequest, ContextOverflow, or OutOfCapacity if no slot becomes free in time. ``tenant`` sent the
        messages, whoever owns the template: slow prompts delay only their sender's.
        """
        conversation = [dict(message) for message in messages]
        answer = await self._rendered(
            RenderJob(source, self._special_tokens, conversation, add_generation_prompt, add_special_tokens), tenant
        )
        if isinstance(answer, Rendered):
            raise _too_much_text("messages")
        return answer.text if isinstance(answer, Text) else self._ids(answer, "messages")

    async def check(self, source: str, tenant: str) -> None:
        """Raises AdapterRejected for an invalid template, and OutOfCapacity if no slot becomes free in time."""
        job = RenderJob(source, self._special_tokens, None, add_generation_prompt=False, add_special_tokens=False)
        try:
            await self._rendered(job, tenant)
        except InvalidRequest as error:
            raise AdapterRejected(error.message, param="chat_template") from None

    async def encode(self, text: str, tenant: str, *, param: str, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of a text within the limits; ``param`` is its field.

        Raises InvalidRequest, ContextOverflow, or OutOfCapacity if no slot becomes free in time.
        """
        async with self._turns.slot(tenant):
            answer = await self._answer(EncodeJob(text, add_special_tokens))
        if answer is None:
            raise _too_much_text(param)
        return self._ids(answer, param)

    async def aclose(self) -> None:
        """Ends the processes. No caller may be waiting for a prompt."""
        while self._idle:
            await _end(self._idle.pop())

    async def _rendered(self, job: RenderJob, tenant: str) -> Answer:
        """Returns the answer: ``Rendered`` if the template worked and the process died tokenizing its text."""
        key = (tenant, hashlib.sha256(job.source.encode()).hexdigest())
        async with self._turns.slot(tenant):
            self._check_not_banned(key)
            answer = await self._answer(job)
            if answer is None:
                self._ban(key)
                raise _too_much()
        if isinstance(answer, Refused):
            raise InvalidRequest(answer.reason, param="messages")
        return answer

    def _ids(self, answer: Answer, param: str) -> list[int]:
        if isinstance(answer, TooLong):
            self._limits.check_chars(answer.num_chars, param)
            self._limits.check_tokens(answer.num_tokens or 0, param)
        assert isinstance(answer, TokenIds)
        return answer.ids

    async def _answer(self, job: Job) -> Answer | None:
        """Returns the last answer to a job; None if the process died without one."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._ask(job)
        except TimeoutError:
            raise OutOfCapacity("rendering and tokenizing the prompt took too long; try again later") from None

    async def _ask(self, job: Job) -> Answer | None:
        process = self._idle.pop() if self._idle else await self._start()
        try:
            first = await _ask(process, frame(job))
            last = await _next_answer(process) if isinstance(first, Rendered) else first
        except BaseException:
            await asyncio.shield(_end(process))
            raise
        if last is None:
            await _end(process)
        else:
            self._idle.append(process)
        return last or first

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *low_priority_command("punica_serve.text.template_worker"),
            *(str(self._tokenizer_folder.absolute()), str(self._limits.max_context)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_FRAME_BYTES,
            env=bare_environment() | _NO_THREADS,
        )

    def _check_not_banned(self, key: tuple[str, str]) -> None:
        if time.monotonic() < self._bans.get(key, 0.0):
            raise _too_much()

    def _ban(self, key: tuple[str, str]) -> None:
        self._bans[key] = time.monotonic() + BAN_S
        self._bans.move_to_end(key)
        if len(self._bans) > _MAX_BANS:
            self._bans.popitem(last=False)


def _too_much() -> InvalidRequest:
    message = "this adapter's chat template takes too much time or memory; send a prompt, or register it with another"
    return InvalidRequest(message, param="messages")


def _too_much_text(param: str) -> InvalidRequest:
    return InvalidRequest(f"the prompt of `{param}` takes too much time or memory to tokenize; shorten it", param=param)


async def _ask(process: asyncio.subprocess.Process, job: bytes) -> Answer | None:
    assert process.stdin
    try:
        process.stdin.write(job)
        await process.stdin.drain()
    except ConnectionError:
        return None
    return await _next_answer(process)


async def _next_answer(process: asyncio.subprocess.Process) -> Answer | None:
    assert process.stdout
    try:
        head = await process.stdout.readexactly(LENGTH_BYTES)
        body = await process.stdout.readexactly(body_bytes(head))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    answer: Answer = _decode_answer(body)
    return answer


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
