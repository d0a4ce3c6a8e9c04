"""Plans, runs and answers the bodies of LoRAX and TGI, whole or as a stream."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from fastapi import Request, Response

from punica_frontend.api.caller import Caller, caller_of
from punica_frontend.fields.policy import FieldPolicy, with_ignored
from punica_frontend.generation.choices import check_together, copies, stream_all, whole_answers
from punica_frontend.generation.event_stream import EventStream
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.prompts import PromptEncoder
from punica_frontend.generation.request_plan import RequestPlan
from punica_frontend.http.connection import CLIENT_CLOSED, run_while_connected
from punica_frontend.openai.error_terms import lora_id_of
from punica_frontend.tgi.answers import Generated, StreamEvent
from punica_frontend.tgi.body import LoraxBody, check_parameters
from punica_frontend.tgi.errors import error_event, tgi_terms
from punica_frontend.tgi.transcript import Transcript
from punica_frontend.tgi.whole_answers import generated
from punica_serve.errors import InvalidRequest, PunicaError
from punica_serve.text.token_texts import TokenTexts
from punica_serve.text.tokenizer import Tokenizer


class TgiResponder:
    """The steps that all generating routes share. Raises TgiErrors."""

    def __init__(
        self,
        generator: Generator,
        tokenizer: Tokenizer,
        prompts: PromptEncoder,
        fields: FieldPolicy,
        *,
        base_name: str,
    ) -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._texts = TokenTexts(tokenizer)
        self._field_policy = fields
        self._base_name = base_name

    async def whole(self, body: LoraxBody, request: Request, *, is_list: bool) -> Response:
        with tgi_terms():
            ignored = self._checked(body, stream=False)
            plan = await self._plan(body, caller_of(request), stream=False)
            answer = await run_while_connected(request.receive, self._generated(body, plan))
        if answer is None:
            return Response(status_code=CLIENT_CLOSED)
        content = msgspec.json.encode([answer] if is_list else answer)
        return with_ignored(Response(content, media_type="application/json"), ignored)

    async def stream(self, body: LoraxBody, request: Request) -> Response:
        with tgi_terms():
            ignored = self._checked(body, stream=True)
            plan = await self._plan(body, caller_of(request), stream=True)
        return with_ignored(EventStream(self._events(body, plan), error_event, says_done=False), ignored)

    def _checked(self, body: LoraxBody, *, stream: bool) -> tuple[str, ...]:
        """Returns the ignored unknown fields. Raises InvalidRequest."""
        try:
            ignored = self._field_policy.check(body)
            check_parameters(body.given, stream=stream)
        except InvalidRequest as error:
            self._generator.metrics.refused(error.code)
            # Without ``param``: the message uses the client's field name and must not be translated.
            raise InvalidRequest(error.message) from None
        return ignored

    async def _plan(self, body: LoraxBody, caller: Caller, *, stream: bool) -> RequestPlan:
        try:
            input_ids = await self._input_ids(body, caller)
        except PunicaError as error:
            self._generator.metrics.refused(error.code)
            raise
        given = body.given
        needs_logprobs = stream or given.has_details or given.num_drawn > 1
        lora_id = lora_id_of(given.adapter_id, self._base_name)
        fields = body.native(lora_id, input_ids, needs_logprobs=needs_logprobs)
        return await self._generator.plan(fields, caller)

    async def _input_ids(self, body: LoraxBody, caller: Caller) -> list[int] | None:
        """Returns the token ids of truncated inputs; None if ``truncate`` is not set."""
        num_kept = body.given.truncate
        if num_kept is None:
            return None
        return (await self._prompts.ids(body.inputs, caller.tenant_id, param="prompt"))[-num_kept:]

    async def _generated(self, body: LoraxBody, plan: RequestPlan) -> Generated:
        plans = copies(plan, body.given.num_drawn)
        check_together(self._generator, plans)
        return generated(body, plans, await whole_answers(self._generator, plans), self._tokenizer, self._texts)

    async def _events(self, body: LoraxBody, plan: RequestPlan) -> AsyncGenerator[StreamEvent, None]:
        transcript = Transcript(self._tokenizer, self._texts, plan, body.given)
        with tgi_terms():
            async with aclosing(stream_all(self._generator, (plan,))) as frames:
                async for _, frame in frames:
                    for event in transcript.events(frame):
                        yield event
