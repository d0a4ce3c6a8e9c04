"""LoRAX's and TGI's bodies, planned, run and answered: at once, or as a stream."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from fastapi import Request, Response

from punica_frontend.caller import Caller, caller_of
from punica_frontend.choices import check_together, copies, whole_answers
from punica_frontend.connection import CLIENT_CLOSED, run_while_connected
from punica_frontend.event_stream import EventStream
from punica_frontend.generation import MAX_INLINE_CHARS, Generator, Plan
from punica_frontend.openai.terms import lora_id_of
from punica_frontend.tgi.answers import Generated, StreamEvent
from punica_frontend.tgi.body import LoraxBody, refuse_unsupported
from punica_frontend.tgi.errors import last_words, tgi_terms
from punica_frontend.tgi.transcript import Transcript
from punica_frontend.tgi.whole import generated
from punica_serve.errors import PunicaError
from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer


class Answering:
    """What all routes that generate do. Raises TgiErrors."""

    def __init__(self, generator: Generator, tokenizer: Tokenizer, *, base_name: str) -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._texts = TokenTexts(tokenizer)
        self._base_name = base_name

    async def whole(self, body: LoraxBody, request: Request, *, is_list: bool) -> Response:
        with tgi_terms():
            plan = await self._plan(body, caller_of(request), stream=False)
            answer = await run_while_connected(request.receive, self._generated(body, plan))
        if answer is None:
            return Response(status_code=CLIENT_CLOSED)
        return Response(msgspec.json.encode([answer] if is_list else answer), media_type="application/json")

    async def stream(self, body: LoraxBody, request: Request) -> Response:
        with tgi_terms():
            plan = await self._plan(body, caller_of(request), stream=True)
        return EventStream(self._events(body, plan), last_words, says_done=False)

    async def _plan(self, body: LoraxBody, caller: Caller, *, stream: bool) -> Plan:
        try:
            refuse_unsupported(body, stream=stream)
        except PunicaError as error:
            self._generator.figures.refused(error.code)
            raise
        given = body.given
        needs_logprobs = stream or given.has_details or given.num_drawn > 1
        lora_id = lora_id_of(given.adapter_id, self._base_name)
        fields = body.native(lora_id, await self._input_ids(body), needs_logprobs=needs_logprobs)
        return await self._generator.plan(fields, caller)

    async def _input_ids(self, body: LoraxBody) -> list[int] | None:
        """Of inputs that are to be cut."""
        num_kept = body.given.truncate
        if num_kept is None:
            return None
        if len(body.inputs) > MAX_INLINE_CHARS:
            return (await asyncio.to_thread(self._tokenizer.encode, body.inputs))[-num_kept:]
        return self._tokenizer.encode(body.inputs)[-num_kept:]

    async def _generated(self, body: LoraxBody, plan: Plan) -> Generated:
        plans = copies(plan, body.given.num_drawn)
        check_together(self._generator, plans)
        return generated(body, plans, await whole_answers(self._generator, plans), self._tokenizer, self._texts)

    async def _events(self, body: LoraxBody, plan: Plan) -> AsyncGenerator[StreamEvent, None]:
        transcript = Transcript(self._tokenizer, self._texts, plan, body.given)
        with tgi_terms():
            async with aclosing(self._generator.stream(plan)) as frames:
                async for frame in frames:
                    for event in transcript.events(frame):
                        yield event
