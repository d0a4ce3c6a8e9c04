"""From the messages of a conversation to a prompt, through the template of the adapter or of the base model."""

import asyncio
from collections.abc import Sequence

from punica_frontend.generation import MAX_INLINE_CHARS
from punica_frontend.openai.chat_body import Message
from punica_frontend.templates import TemplateRenderer
from punica_serve.registry.records import AdapterVersion
from punica_serve.text.tokenizer import Tokenizer

#: What a template takes for a message, as characters to encode.
_MESSAGE_CHARS = 32


class Conversations:
    """The base model's template is the operator's, and is rendered here; an adapter's is rendered elsewhere."""

    def __init__(self, tokenizer: Tokenizer, templates: TemplateRenderer) -> None:
        self._tokenizer = tokenizer
        self._templates = templates

    async def prompt_ids(
        self,
        messages: Sequence[Message],
        adapter: AdapterVersion | None,
        *,
        add_generation_prompt: bool,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """Special tokens are the template's to write, unless they are asked for. Raises InvalidRequest."""
        conversation = [message.as_template_sees_it() for message in messages]
        text = None
        if adapter and adapter.chat_template is not None:
            text = await self._templates.render(
                adapter.chat_template, conversation, adapter.tenant, add_generation_prompt=add_generation_prompt
            )

        def ids() -> list[int]:
            prompt = text
            if prompt is None:
                prompt = self._tokenizer.render_chat(conversation, add_generation_prompt=add_generation_prompt)
            return self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens)

        num_chars = len(text or "") + sum(_MESSAGE_CHARS + len(message.content) for message in messages)
        return ids() if num_chars <= MAX_INLINE_CHARS else await asyncio.to_thread(ids)
