"""A process that renders the chat templates of tenants' adapters: programs of strangers.

Jinja's sandbox keeps them from everything but time and memory, and the kernel bounds those: beyond its processor time
this process dies, beyond its memory a template fails. It ends when its standard input does.
"""

import resource
import signal
import sys
from functools import lru_cache
from typing import BinaryIO

import msgspec

from punica_serve.errors import PunicaError
from punica_serve.text.chat_template import ChatTemplate
from punica_serve.text.template_job import LENGTH_BYTES, TemplateAnswer, TemplateJob, body_bytes, frame

#: Processor time of one job.
MAX_CPU_S = 0.5
#: Memory beyond what the process starts with.
MAX_MEMORY_BYTES = 256 << 20
#: A longer prompt is none that a model could read.
MAX_TEXT_CHARS = 8 << 20


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    max_bytes = _address_space_bytes() + MAX_MEMORY_BYTES
    resource.setrlimit(
        resource.RLIMIT_AS, (max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard), hard)
    )
    while job := _next_job(sys.stdin.buffer):
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # SIGPROF, which nobody handles, ends the process
        answer = answer_of(job)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        sys.stdout.buffer.write(frame(answer))
        sys.stdout.buffer.flush()


def answer_of(job: TemplateJob) -> TemplateAnswer:
    try:
        template = _compiled(job.source, tuple(sorted(job.special_tokens.items())))
        if job.messages is None:
            return TemplateAnswer()
        text = template.render(job.messages, add_generation_prompt=job.add_generation_prompt)
    except PunicaError as error:
        return TemplateAnswer(error=error.message)
    # Jinja's compiler runs what is constant in a template, which may fail in any way.
    except Exception as error:
        reason = str(error) or type(error).__name__
        return TemplateAnswer(error=f"the chat template of the adapter fails: {reason}"[:1000])
    if len(text) > MAX_TEXT_CHARS:
        return TemplateAnswer(error=f"the chat template makes a prompt of {len(text)} characters of these messages")
    return TemplateAnswer(text)


@lru_cache(maxsize=64)
def _compiled(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens), of="the adapter")


def _next_job(pipe: BinaryIO) -> TemplateJob | None:
    head = pipe.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    return msgspec.msgpack.decode(pipe.read(body_bytes(head)), type=TemplateJob)


def _address_space_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:  # no Linux
        return 1 << 30


if __name__ == "__main__":
    main()
