"""Several requests that are answered together: the choices of one body."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from punica_frontend.generation.answers import Frame, GenerateAnswer, TokenUsage, answer, usage
from punica_frontend.generation.direct_output import DirectOutput
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.reader_queue import ReaderQueue
from punica_frontend.generation.request_ids import cluster_request_id
from punica_frontend.generation.request_plan import RequestPlan
from punica_frontend.generation.response_stream import ResponseStream
from punica_frontend.scheduler_link.live_request import Backlog
from punica_serve.errors import InvalidRequest

#: The most requests of one body: prompts times choices.
MAX_CHOICES = 128

_NUM_SEEDS = 1 << 64


@dataclass(frozen=True, slots=True)
class Choices:
    """All requests of one body: all choices of its first prompt, then those of the next."""

    plans: tuple[RequestPlan, ...]
    num_per_prompt: int = 1
    #: Unsupported fields that the answer ignores.
    ignored_fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, prompts: Sequence[RequestPlan], num_per_prompt: int, ignored_fields: tuple[str, ...] = ()) -> "Choices":
        plans = tuple(copy for plan in prompts for copy in copies(plan, num_per_prompt))
        return cls(plans, num_per_prompt, ignored_fields)

    def usage(self, num_generated_tokens: int, ends: Mapping[int, TokenUsage]) -> TokenUsage:
        """Returns the usage of the whole body. Each prompt counts once, however many choices it has.

        ``ends`` has the plans' own usages, by index. A prompt's cached tokens are those of its first choice.
        """
        firsts = range(0, len(self.plans), self.num_per_prompt)
        num_prompt_tokens = sum(len(self.plans[index].request.prompt_ids) for index in firsts)
        found = [ends[index].num_cached_tokens for index in firsts if index in ends]
        known = [num_cached for num_cached in found if num_cached is not None]
        return usage(num_prompt_tokens, num_generated_tokens, sum(known) if known else None)


def copies(plan: RequestPlan, count: int) -> list[RequestPlan]:
    """Returns ``count`` requests of one prompt: ``plan``, then copies whose seeds count up from its own."""
    if count == 1:
        return [plan]
    return [replace(plan, num_choices=count), *(_copy(plan, offset) for offset in range(1, count))]


def check_together(generator: Generator, plans: Sequence[RequestPlan]) -> None:
    """Raises InvalidRequest if the requests of one body exceed what their tenant may ever run together.

    Otherwise some would be admitted and use up quota before the next is refused. The scheduler checks single requests.
    """
    if len(plans) < 2:
        return
    caller, num_tokens = plans[0].caller, sum(plan.request.max_num_tokens for plan in plans)
    quota = generator.quota(caller)
    for num_needed, limit, words in (
        (len(plans), quota.max_concurrent, "concurrent requests"),
        (len(plans), quota.requests_per_min, "requests a minute"),
        (num_tokens, quota.tokens_per_min, "tokens a minute"),
    ):
        if limit and num_needed > limit:  # with a limit of 0 the scheduler refuses even one request
            error = InvalidRequest(
                f"`n`: all choices of all prompts need {num_needed} {words}, and tenant {caller.tenant!r} may have "
                f"{limit}; ask for fewer at once",
                param="n",
            )
            generator.metrics.refused(error.code)
            raise error


async def stream_all(
    generator: Generator, plans: Sequence[RequestPlan], direct: DirectOutput | None = None
) -> AsyncGenerator[tuple[int, Frame], None]:
    """Runs plans for one reader: yields frames as they come, each with its plan's index.

    Closing it early cancels what still runs. Raises the error of any request that the cluster failed, which ends the
    others too. ``direct`` writes single tokens itself while the reader waits: these are not yielded.
    """
    streams: list[ResponseStream] = []
    ready: ReaderQueue[int] = direct.queue if direct else ReaderQueue()
    backlog = Backlog()
    try:
        for index, plan in enumerate(plans):
            streams.append(await generator.start(plan, partial(ready.put, index), backlog))
            if direct:
                streams[index].write_tokens(index, direct)
        num_open = len(plans)
        has_begun = False
        while num_open:
            index = await ready.next()
            if not streams[index].is_open:  # tokens behind its stop string had queued it again
                continue
            if not has_begun:  # headers go with the first frame; the requests behind it are counted by then
                has_begun = True
                for stream in streams:
                    stream.record_rate_limits()
            frame = streams[index].take()
            num_open -= frame.finish_reason is not None
            if frame.finish_reason and num_open:
                # Closed before the reader takes the frame: tokens after a stop string must not queue it again.
                streams[index].close()
            yield index, frame
    finally:
        for stream in streams:
            stream.close()


async def whole_answers(generator: Generator, plans: Sequence[RequestPlan]) -> list[GenerateAnswer]:
    """Runs plans to their ends. Raises the error of any request that the cluster failed."""
    frames: list[list[Frame]] = [[] for _ in plans]
    async with aclosing(stream_all(generator, plans)) as stream:
        async for index, frame in stream:
            frames[index].append(frame)
    return [answer(of_plan, lora_id=plan.lora_id) for of_plan, plan in zip(frames, plans, strict=True)]


def _copy(plan: RequestPlan, offset: int) -> RequestPlan:
    request = plan.request
    assert request.sampling.seed is not None
    sampling = msgspec.structs.replace(request.sampling, seed=(request.sampling.seed + offset) % _NUM_SEEDS)
    request_id = cluster_request_id()
    request = msgspec.structs.replace(request, request_id=request_id, sampling=sampling)
    return replace(plan, request=request, answer_id=request_id, num_choices=0)
