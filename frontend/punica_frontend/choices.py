"""Several requests that are answered together: the choices of one body."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import msgspec

from punica_frontend.answering import Answering
from punica_frontend.answers import Answer, Frame, Usage, answer, usage
from punica_frontend.generation import Generator, Plan
from punica_frontend.live_request import Backlog
from punica_frontend.request_ids import cluster_request_id
from punica_serve.errors import InvalidRequest

#: Requests that one body may make: its prompts, times the choices of each.
MAX_CHOICES = 128

_NUM_SEEDS = 1 << 64


@dataclass(frozen=True, slots=True)
class Choices:
    """What one body asks for: all choices of its first prompt, then those of the next."""

    plans: tuple[Plan, ...]
    num_per_prompt: int = 1

    @classmethod
    def of(cls, prompts: Sequence[Plan], num_per_prompt: int) -> "Choices":
        return cls(tuple(copy for plan in prompts for copy in copies(plan, num_per_prompt)), num_per_prompt)

    def usage(self, num_generated_tokens: int) -> Usage:
        """Each prompt counts once, however many choices it has."""
        prompts = self.plans[:: self.num_per_prompt]
        return usage(sum(len(plan.request.prompt_ids) for plan in prompts), num_generated_tokens)


def copies(plan: Plan, count: int) -> list[Plan]:
    """``count`` requests of one prompt: the first is ``plan``, and each has a seed that is one more than the last's."""
    return [plan, *(_copy(plan, offset) for offset in range(1, count))]


def check_together(generator: Generator, plans: Sequence[Plan]) -> None:
    """Raises InvalidRequest where the requests of one body are more than their tenant may ever have together.

    Some of them would be let in and spend its quota before the next is refused. One alone is the scheduler's to refuse.
    """
    if len(plans) < 2:
        return
    caller, num_tokens = plans[0].caller, sum(plan.request.max_num_tokens for plan in plans)
    quota = generator.quota(caller)
    for num_needed, limit, words in (
        (len(plans), quota.max_concurrent, "requests at a time"),
        (len(plans), quota.requests_per_min, "requests a minute"),
        (num_tokens, quota.tokens_per_min, "tokens a minute"),
    ):
        if limit and num_needed > limit:  # a tenant that may have none is refused even one
            error = InvalidRequest(
                f"`n`: all choices of all prompts need {num_needed} {words}, and tenant {caller.tenant!r} may have "
                f"{limit}; ask for fewer at once",
                param="n",
            )
            generator.figures.refused(error.code)
            raise error


async def stream_all(generator: Generator, plans: Sequence[Plan]) -> AsyncGenerator[tuple[int, Frame], None]:
    """Runs plans for one reader: frames as they come, each with the place of its plan.

    Closing it early cancels what goes on. Raises what the cluster ended any of them with; that ends the others too.
    """
    #: Whoever has something to take, once each.
    line: asyncio.Queue[int] = asyncio.Queue()
    backlog = Backlog()
    answerings: list[Answering] = []
    try:
        for index, plan in enumerate(plans):
            answerings.append(await generator.start(plan, _line_up(line, index), backlog))
        num_open = len(plans)
        while num_open:
            index = await line.get()
            frame = answerings[index].take()
            num_open -= frame.finish_reason is not None
            if frame.finish_reason and num_open:
                # Before the reader takes the frame: tokens behind a stop string must not line it up again.
                answerings[index].close()
            yield index, frame
    finally:
        for answering in answerings:
            answering.close()


async def whole_answers(generator: Generator, plans: Sequence[Plan]) -> list[Answer]:
    """Runs plans to their ends. Raises what the cluster ended any of them with."""
    frames: list[list[Frame]] = [[] for _ in plans]
    async with aclosing(stream_all(generator, plans)) as stream:
        async for index, frame in stream:
            frames[index].append(frame)
    return [answer(of_plan, lora_id=plan.lora_id) for of_plan, plan in zip(frames, plans, strict=True)]


def _line_up(line: asyncio.Queue[int], index: int) -> Callable[[], None]:
    return lambda: line.put_nowait(index)


def _copy(plan: Plan, offset: int) -> Plan:
    request = plan.request
    assert request.sampling.seed is not None
    sampling = msgspec.structs.replace(request.sampling, seed=(request.sampling.seed + offset) % _NUM_SEEDS)
    request_id = cluster_request_id()
    return replace(plan, request=msgspec.structs.replace(request, request_id=request_id, sampling=sampling))
