"""Turns the messages of a conversation into a prompt, by the template of the adapter or of the base model."""

from collections.abc import Sequence
from functools import partial

from punica_frontend.generation.prompts import PromptEncoder
from punica_frontend.generation.templates import TemplateRenderer
from punica_frontend.openai.chat_body import InputMessage
from punica_serve.registry.records import AdapterVersion
from punica_serve.text.tokenizer import Tokenizer

#: The cost of rendering a message, in characters to encode.
_MESSAGE_CHARS = 32


class Conversations:
    """Renders chats. The base model's template is the operator's and runs here; adapters' run in other processes."""

    def __init__(self, tokenizer: Tokenizer, templates: TemplateRenderer, prompts: PromptEncoder) -> None:
        self._tokenizer = tokenizer
        self._templates = templates
        self._prompts = prompts

    async def prompt_ids(
        self,
        messages: Sequence[InputMessage],
        adapter: AdapterVersion | None,
        tenant: str,
        *,
        add_generation_prompt: bool,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """Returns the token ids of a tenant's conversation.

        The template writes special tokens; ``add_special_tokens`` adds them again. Raises InvalidRequest,
        ContextOverflow, and OutOfCapacity if no slot becomes free in time.
        """
        conversation = [message.as_template_sees_it() for message in messages]
        if adapter and adapter.chat_template is not None:
            prompt = await self._templates.render(
                adapter.chat_template,
                conversation,
                tenant,
                add_generation_prompt=add_generation_prompt,
                add_special_tokens=add_special_tokens,
            )
            if not isinstance(prompt, str):
                return prompt
        else:
            render = partial(self._tokenizer.render_chat, conversation, add_generation_prompt=add_generation_prompt)
            num_chars = sum(_MESSAGE_CHARS + len(message.content) for message in messages)
            prompt = await self._prompts.run(render, num_chars, tenant)
        return await self._prompts.ids(prompt, tenant, param="messages", add_special_tokens=add_special_tokens)
