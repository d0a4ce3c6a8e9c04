"""A process that renders the untrusted chat templates of tenants' adapters, and tokenizes long prompts.

Its arguments are the tokenizer's folder and the longest context in tokens.

Jinja's sandbox limits everything about templates except time and memory, which the kernel limits here. Past its
processor time this process dies. Past its memory a template fails; the tokenizer can't handle that, so the process
dies. It exits when its standard input is closed.
"""

import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import msgspec

from punica_serve.errors import PunicaError
from punica_serve.learned_types import learned
from punica_serve.process.limits import address_space_bytes, limit_address_space, limited_cpu
from punica_serve.process.memory_tuning import trim_heap
from punica_serve.text.chat_template import ChatTemplate
from punica_serve.text.prompt_limits import MAX_LOCAL_CHARS, PromptLimits
from punica_serve.text.template_job import (
    LENGTH_BYTES,
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
from punica_serve.text.tokenizer import Tokenizer

#: Processor time for a template.
MAX_CPU_S = 0.5
#: Memory for a job, beyond what the idle process has.
MAX_MEMORY_BYTES = 256 << 20

#: The tokenizer's limits per character that a prompt may have. A character of plain text takes half a microsecond and
#: 150 bytes; one that becomes three tokens, three times as much.
_ENCODE_BYTES = 160
_ENCODE_CPU_S = 4e-6

_decode_job = msgspec.msgpack.Decoder(learned(Job)).decode


def main() -> None:
    folder, max_context = sys.argv[1:]
    desk = PromptJobs(Path(folder), PromptLimits(int(max_context)))
    while job := _next_job(sys.stdin.buffer):
        for answer in desk.answers(job):
            sys.stdout.buffer.write(frame(answer))
            sys.stdout.buffer.flush()


class PromptJobs:
    """Answers jobs within the resource limits of this process, which it sets."""

    def __init__(self, tokenizer_folder: Path, limits: PromptLimits) -> None:
        self._folder = tokenizer_folder
        self._limits = limits
        #: Loaded when a prompt is first tokenized: a large vocabulary takes a second and a hundred megabytes.
        self._tokenizer: Tokenizer | None = None
        self._idle_bytes = address_space_bytes()

    def answers(self, job: Job) -> Iterator[Answer]:
        if isinstance(job, EncodeJob):
            yield self._encode(job.text, job.add_special_tokens)
            return
        limit_address_space(self._idle_bytes + MAX_MEMORY_BYTES)
        with limited_cpu(MAX_CPU_S):
            answer = _render(job, self._limits)
        if isinstance(answer, Text) and len(answer.text) > MAX_LOCAL_CHARS:
            yield Rendered()
            yield self._encode(answer.text, job.add_special_tokens)
        else:
            yield answer

    def _encode(self, text: str, add_special_tokens: bool) -> TokenIds | TooLong:
        tokenizer = self._loaded()
        limit_address_space(self._idle_bytes + MAX_MEMORY_BYTES + _ENCODE_BYTES * self._limits.max_chars)
        with limited_cpu(MAX_CPU_S + _ENCODE_CPU_S * len(text)):
            ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        trim_heap()
        return TooLong(len(text), len(ids)) if len(ids) > self._limits.max_tokens else TokenIds(ids)

    def _loaded(self) -> Tokenizer:
        """The tokenizer, which is trusted: its memory counts as the idle process's."""
        if self._tokenizer is None:
            limit_address_space(None)
            before_bytes = address_space_bytes()
            self._tokenizer = Tokenizer.from_folder(self._folder)
            self._idle_bytes += address_space_bytes() - before_bytes
        return self._tokenizer


def _render(job: RenderJob, limits: PromptLimits) -> Text | TooLong | Refused:
    try:
        template = _compiled(job.source, tuple(sorted(job.special_tokens.items())))
        if job.messages is None:
            return Text("")
        text = template.render(job.messages, add_generation_prompt=job.add_generation_prompt)
    except PunicaError as error:
        return Refused(error.message)
    # Jinja's compiler evaluates constant expressions, which may fail in any way.
    except Exception as error:
        reason = str(error) or type(error).__name__
        return Refused(f"the chat template of the adapter fails: {reason}"[:1000])
    return TooLong(len(text)) if len(text) > limits.max_chars else Text(text)


@lru_cache(maxsize=64)
def _compiled(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens), of="the adapter")


def _next_job(pipe: BinaryIO) -> Job | None:
    head = pipe.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    job: Job = _decode_job(pipe.read(body_bytes(head)))
    return job
