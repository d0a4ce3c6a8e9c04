"""Turns checked bodies into request plans."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from punica_frontend.api.caller import Caller
from punica_frontend.api.schemas import GenerateFields
from punica_frontend.fields.policy import FieldPolicy
from punica_frontend.generation.choices import MAX_CHOICES, Choices, check_together
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.request_plan import RequestPlan
from punica_frontend.openai.chat_body import ChatBody
from punica_frontend.openai.completion_body import CompletionBody
from punica_frontend.openai.conversation import Conversations
from punica_frontend.openai.error_terms import lora_id_of, openai_terms
from punica_frontend.openai.model_names import model_named
from punica_frontend.openai.sampling_body import SamplingBody
from punica_serve.errors import InvalidRequest, PunicaError
from punica_serve.numbers import counted
from punica_serve.registry.records import AdapterVersion
from punica_serve.text.tokenizer import Tokenizer

#: OpenAI's default for completions. Chats default to the rest of the context.
DEFAULT_MAX_TOKENS = 16


class RequestPlanner:
    """Plans the requests of OpenAI's bodies. Raises errors with the bodies' field names."""

    def __init__(
        self, generator: Generator, conversations: Conversations, fields: FieldPolicy, *, base_name: str
    ) -> None:
        self._generator = generator
        self._conversations = conversations
        self._field_policy = fields
        self._base_name = base_name

    async def completion(self, body: CompletionBody, caller: Caller) -> Choices:
        with self._counted():
            ignored = self._field_policy.check(body)
            _check_stream_options(body)
            _check_completion(body)
        adapter = await self._adapter(body, caller)
        prompts = [await self._completion(body, index, caller, adapter) for index in range(len(body.prompt))]
        return self._together(prompts, body.num_drawn, ignored)

    async def chat(self, body: ChatBody, caller: Caller) -> Choices:
        with self._counted():
            ignored = self._field_policy.check(body)
            _check_stream_options(body)
            if body.top_logprobs and not body.logprobs:
                raise InvalidRequest("`top_logprobs` needs `logprobs` to be true", param="top_logprobs")
        adapter = await self._adapter(body, caller)
        with self._counted():
            prompt_ids = await self._conversations.prompt_ids(
                body.messages,
                adapter,
                caller.tenant_id,
                add_generation_prompt=body.add_generation_prompt is not False,
            )
        names = {"input_ids": "messages"}
        if body.max_completion_tokens:
            names["max_tokens"] = "max_completion_tokens"
        fields = self._fields(
            body,
            adapter,
            input_ids=prompt_ids,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            logprobs=body.num_logprobs,
        )
        with openai_terms(body.model, names):
            plan = await self._generator.plan(fields, caller, adapter=adapter)
        return self._together([plan], body.num_choices, ignored)

    def _together(self, prompts: Sequence[RequestPlan], num_per_prompt: int, ignored: tuple[str, ...]) -> Choices:
        choices = Choices.of(prompts, num_per_prompt, ignored)
        check_together(self._generator, choices.plans)
        return choices

    async def _completion(
        self, body: CompletionBody, index: int, caller: Caller, adapter: AdapterVersion | None
    ) -> RequestPlan:
        prompt = body.prompt[index]
        field = "prompt" if len(body.prompt) == 1 else f"prompt.{index}"
        fields = self._fields(
            body,
            adapter,
            **({"prompt": prompt} if isinstance(prompt, str) else {"input_ids": prompt}),
            max_tokens=body.max_tokens,
            # The best are selected by logprobs.
            logprobs=0 if body.logprobs is None and body.num_drawn > body.num_choices else body.logprobs,
        )
        with openai_terms(body.model, {"input_ids": field, "prompt": field}):
            plan = await self._generator.plan(fields, caller, adapter=adapter)
        return plan if body.max_tokens else shortened(plan, max(DEFAULT_MAX_TOKENS, plan.request.sampling.min_tokens))

    async def _adapter(self, body: SamplingBody, caller: Caller) -> AdapterVersion | None:
        """Looks the adapter up once, so that all prompts and choices get the same version."""
        with openai_terms(body.model, {}), self._counted():
            return await model_named(body.model, caller, self._generator, base_name=self._base_name)

    def _fields(self, body: SamplingBody, adapter: AdapterVersion | None, **fields: Any) -> GenerateFields:
        lora_id = lora_id_of(body.model, self._base_name) if adapter else None
        # The body's checks are those of GenerateFields, and token ids come from them or from the tokenizer.
        return GenerateFields.model_construct(lora_id=lora_id, **body.native_fields(), **fields)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts refusals before a plan exists; ``Generator.plan`` counts its own."""
        try:
            yield
        except PunicaError as error:
            self._generator.metrics.refused(error.code)
            raise


def shortened(plan: RequestPlan, max_tokens: int) -> RequestPlan:
    """Returns the plan with at most ``max_tokens`` tokens of answer."""
    sampling = plan.request.sampling
    sampling = msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, max_tokens))
    return replace(plan, request=msgspec.structs.replace(plan.request, sampling=sampling))


def _check_stream_options(body: SamplingBody) -> None:
    if body.has_stream_options and not body.stream:
        raise InvalidRequest(
            "`stream_options` needs `stream`: set `stream` to true, or leave `stream_options` out",
            param="stream_options",
        )
    if body.stream_options and body.stream_options.continuous_usage_stats and not body.includes_usage:
        name = "stream_options.continuous_usage_stats"
        raise InvalidRequest(f"`{name}` needs `include_usage` to be true", param=name)


def _check_completion(body: CompletionBody) -> None:
    if len(body.prompt) * body.num_drawn > MAX_CHOICES:
        prompts, choices = counted(len(body.prompt), "prompt"), counted(body.num_drawn, "choice")
        message = f"{prompts} with {choices} each make more than {MAX_CHOICES} requests; send fewer at once"
        raise InvalidRequest(message, param="n")
    if body.num_drawn < body.num_choices:
        message = f"`best_of` is {body.num_drawn}, less than the {body.num_choices} choices that `n` asks for"
        raise InvalidRequest(message, param="best_of")
    if body.stream and body.num_drawn > body.num_choices:
        raise InvalidRequest(
            "`best_of` above `n` can't be streamed: the best answers are known only at the end; ask /v1/completions"
            " without `stream`",
            param="best_of",
        )
    if body.echo and body.logprobs is not None:
        message = "`echo` with `logprobs` asks for the prompt's logprobs, which are not computed; leave one out"
        raise InvalidRequest(message, param="echo")


def echoes_of(body: CompletionBody, tokenizer: Tokenizer) -> list[str]:
    """Returns the text before each choice's answer: its prompt if ``echo`` is set, otherwise ""."""
    prompts = _prompt_texts(body.prompt, tokenizer) if body.echo else [""] * len(body.prompt)
    return [prompt for prompt in prompts for _ in range(body.num_choices)]


def _prompt_texts(prompts: Sequence[str | list[int]], tokenizer: Tokenizer) -> list[str]:
    return [prompt if isinstance(prompt, str) else tokenizer.decode(prompt) for prompt in prompts]
