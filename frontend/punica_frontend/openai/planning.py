"""From a checked body to requests of the cluster."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from punica_frontend.caller import Caller
from punica_frontend.choices import MAX_CHOICES, Choices, check_together
from punica_frontend.generation import Generator, Plan
from punica_frontend.openai.chat_body import ChatBody
from punica_frontend.openai.completion_body import CompletionBody
from punica_frontend.openai.conversation import Conversations
from punica_frontend.openai.sampling_body import SamplingBody
from punica_frontend.openai.terms import lora_id_of, openai_terms
from punica_frontend.openai.unsupported import refuse_unsupported
from punica_frontend.schemas import GenerateFields
from punica_serve.counted import counted
from punica_serve.errors import InvalidRequest, PunicaError
from punica_serve.registry.records import AdapterVersion
from punica_serve.text.tokenizer import Tokenizer

#: OpenAI's for completions; those of chats take the rest of the context.
DEFAULT_MAX_TOKENS = 16


class Planner:
    """Plans bodies of OpenAI's. Raises errors in the terms of those bodies."""

    def __init__(self, generator: Generator, conversations: Conversations, *, base_name: str) -> None:
        self._generator = generator
        self._conversations = conversations
        self._base_name = base_name

    async def completion(self, body: CompletionBody, caller: Caller) -> Choices:
        with self._counted():
            refuse_unsupported(body)
            _check_completion(body)
        adapter = await self._adapter(body, caller)
        prompts = [await self._completion(body, index, caller, adapter) for index in range(len(body.prompt))]
        return self._together(prompts, body.num_drawn)

    async def chat(self, body: ChatBody, caller: Caller) -> Choices:
        with self._counted():
            refuse_unsupported(body, messages=body.messages)
            if body.top_logprobs and not body.logprobs:
                raise InvalidRequest("`top_logprobs` needs `logprobs` to be true", param="top_logprobs")
        adapter = await self._adapter(body, caller)
        with self._counted():
            prompt_ids = await self._conversations.prompt_ids(
                body.messages, adapter, add_generation_prompt=body.add_generation_prompt is not False
            )
        names = {"input_ids": "messages"}
        if body.max_completion_tokens:
            names["max_tokens"] = "max_completion_tokens"
        fields = self._fields(
            body,
            input_ids=prompt_ids,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            logprobs=body.num_logprobs,
        )
        with openai_terms(body.model, names):
            plan = await self._generator.plan(fields, caller, adapter=adapter)
        return self._together([plan], body.num_choices)

    def _together(self, prompts: Sequence[Plan], num_per_prompt: int) -> Choices:
        choices = Choices.of(prompts, num_per_prompt)
        check_together(self._generator, choices.plans)
        return choices

    async def _completion(
        self, body: CompletionBody, index: int, caller: Caller, adapter: AdapterVersion | None
    ) -> Plan:
        prompt = body.prompt[index]
        field = "prompt" if len(body.prompt) == 1 else f"prompt.{index}"
        fields = self._fields(
            body,
            **({"prompt": prompt} if isinstance(prompt, str) else {"input_ids": prompt}),
            max_tokens=body.max_tokens,
            # The best can only be told by their logprobs.
            logprobs=0 if body.logprobs is None and body.num_drawn > body.num_choices else body.logprobs,
        )
        with openai_terms(body.model, {"input_ids": field, "prompt": field}):
            plan = await self._generator.plan(fields, caller, adapter=adapter)
        return plan if body.max_tokens else shortened(plan, max(DEFAULT_MAX_TOKENS, fields.min_tokens))

    async def _adapter(self, body: SamplingBody, caller: Caller) -> AdapterVersion | None:
        """Looked up once for all prompts and choices: they get one version of it."""
        with openai_terms(body.model, {}), self._counted():
            return await self._generator.adapter(lora_id_of(body.model, self._base_name), caller)

    def _fields(self, body: SamplingBody, **fields: Any) -> GenerateFields:
        return GenerateFields(lora_id=lora_id_of(body.model, self._base_name), **body.native_fields(), **fields)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """What is refused in here did not come to a plan, and is counted nowhere else."""
        try:
            yield
        except PunicaError as error:
            self._generator.figures.refused(error.code)
            raise


def shortened(plan: Plan, max_tokens: int) -> Plan:
    """The plan of an answer with so many tokens at most."""
    sampling = plan.request.sampling
    sampling = msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, max_tokens))
    return replace(plan, request=msgspec.structs.replace(plan.request, sampling=sampling))


def _check_completion(body: CompletionBody) -> None:
    if len(body.prompt) * body.num_drawn > MAX_CHOICES:
        prompts, choices = counted(len(body.prompt), "prompt"), counted(body.num_drawn, "choice")
        message = f"{prompts} with {choices} each are more than {MAX_CHOICES} requests"
        raise InvalidRequest(message, param="n")
    if body.num_drawn < body.num_choices:
        message = f"`best_of` is {body.num_drawn}, less than the {body.num_choices} choices that `n` asks for"
        raise InvalidRequest(message, param="best_of")
    if body.stream and body.num_drawn > body.num_choices:
        raise InvalidRequest("`best_of` can't be streamed: the best is known at the end only", param="best_of")
    if body.echo and body.logprobs is not None:
        message = "`echo` with `logprobs` asks for the prompt's logprobs, which are not computed; leave one out"
        raise InvalidRequest(message, param="echo")


def echoes_of(body: CompletionBody, tokenizer: Tokenizer) -> list[str]:
    """What each choice of an answer begins with: its prompt, where that was asked for."""
    prompts = _prompt_texts(body.prompt, tokenizer) if body.echo else [""] * len(body.prompt)
    return [prompt for prompt in prompts for _ in range(body.num_choices)]


def _prompt_texts(prompts: Sequence[str | list[int]], tokenizer: Tokenizer) -> list[str]:
    return [prompt if isinstance(prompt, str) else tokenizer.decode(prompt) for prompt in prompts]
