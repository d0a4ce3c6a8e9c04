"""Tokenizes prompts in bounded time and memory.

Short texts are tokenized at once, longer ones in a few threads, and the longest in processes with bounded memory.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from punica_frontend.generation.fair_slots import FairSlots, SlotLimits
from punica_frontend.generation.templates import TIMEOUT_S, TemplateRenderer
from punica_serve.text.prompt_limits import MAX_LOCAL_CHARS, PromptLimits
from punica_serve.text.tokenizer import Tokenizer

T = TypeVar("T")

#: Longer texts would block the event loop for more than a few milliseconds.
MAX_INLINE_CHARS = 8_192

#: A text of MAX_LOCAL_CHARS takes up to 30 MB and 50 ms.
_TURNS = SlotLimits(2, 1, TIMEOUT_S, "too many long prompts are being tokenized")


class PromptEncoder:
    """Tokenizes every text of a client or a template."""

    def __init__(self, tokenizer: Tokenizer, templates: TemplateRenderer, limits: PromptLimits) -> None:
        self._tokenizer = tokenizer
        self._templates = templates
        self._limits = limits
        self._turns = FairSlots(_TURNS)

    async def ids(self, text: str, tenant: str, *, param: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a prompt; ``param`` is its field.

        Raises ContextOverflow for a text that can't fit, before tokenizing it; InvalidRequest for one that takes too
        much time or memory; OutOfCapacity if no slot becomes free in time. Tenants take turns.
        """
        self._limits.check_chars(len(text), param)

        def encode() -> list[int]:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

        if len(text) <= MAX_LOCAL_CHARS:
            return await self.run(encode, len(text), tenant)
        return await self._templates.encode(text, tenant, param=param, add_special_tokens=add_special_tokens)

    async def run(self, work: Callable[[], T], num_chars: int, tenant: str) -> T:
        """Works on so many characters: at once if they are few, otherwise in a thread. Raises OutOfCapacity."""
        if num_chars <= MAX_INLINE_CHARS:
            return work()
        async with self._turns.slot(tenant):
            running = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                return await asyncio.shield(running)
            finally:
                await asyncio.wait([running])  # a thread goes on without whoever has left, and keeps its slot
