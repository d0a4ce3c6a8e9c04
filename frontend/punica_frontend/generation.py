"""From a checked body to a request of the cluster, and back from its deliveries to the frames of an answer."""

import asyncio
import reprlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from punica_frontend.admission import Admission
from punica_frontend.answering import Answering
from punica_frontend.answers import Frame
from punica_frontend.caller import Caller
from punica_frontend.live_request import Backlog, LiveRequest
from punica_frontend.metrics.figures import Figures, RequestFigures, outcome_of
from punica_frontend.request_ids import cluster_request_id
from punica_frontend.request_log import log_added, log_end
from punica_frontend.request_spans import RequestSpans
from punica_frontend.scheduler_client import SchedulerClient
from punica_frontend.schemas import GenerateFields
from punica_frontend.tenancy.meter import Meter
from punica_frontend.text_stream import TextStream
from punica_serve.counted import counted
from punica_serve.errors import AdapterRejected, InvalidRequest
from punica_serve.model_config import GenerationDefaults, ModelConfig
from punica_serve.protocol import Ending, Limits, Request, SamplingParams, TenantQuota
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry
from punica_serve.text.tokenizer import Tokenizer
from punica_serve.tracing import Span, SpanSink

T = TypeVar("T")

#: Longer prompts are encoded in a thread: a few milliseconds of the event loop are everybody's.
MAX_INLINE_CHARS = 8_192


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that is ready to be added, and what only this frontend needs to know of it."""

    request: Request
    caller: Caller
    #: What the client calls the request.
    answer_id: str
    #: What the client calls the adapter; None is the base model.
    lora_id: str | None
    #: The adapter's newest version when the request came, which it keeps.
    adapter: AdapterVersion | None
    stops: tuple[str, ...]
    #: Tokens that end the answer and have no text.
    end_ids: frozenset[int]
    #: When the request came, on the monotonic clock.
    arrived_s: float


@dataclass(frozen=True, slots=True)
class _Told:
    """What is told of a request at its end."""

    request: Request
    adapter: str
    figures: RequestFigures
    span: Span | None


class Generator:
    """Plans requests and starts them, as long as ``admission`` lets them in.

    ``figures`` are told how they went, and ``meter`` what they used.
    """

    def __init__(
        self,
        client: SchedulerClient,
        registry: Registry,
        tokenizer: Tokenizer,
        model: ModelConfig,
        admission: Admission,
        figures: Figures,
        meter: Meter,
        *,
        base_name: str,
        max_context: int,
        logs_requests: bool = True,
        sink: SpanSink | None = None,
    ) -> None:
        """``base_name`` is what the API calls the base model; ``max_context`` is the longest prompt plus answer."""
        self._client = client
        self._registry = registry
        self._tokenizer = tokenizer
        self._model = model
        self._admission = admission
        #: Told how requests went.
        self.figures = figures
        self._meter = meter
        self._base_name = base_name
        self._max_context = max_context
        self._logs_requests = logs_requests
        self._spans = RequestSpans(sink) if sink else None

    async def adapter(self, lora_id: str | None, caller: Caller) -> AdapterVersion | None:
        """What a name means to the caller; None for the base model.

        Raises AdapterNotFound, AdapterRejected for one that can't be served, and InvalidRequest for a name that may be
        several.
        """
        if lora_id is None or lora_id == self._base_name:
            return None
        try:
            return await self._registry.adapter(caller.tenant, lora_id, is_admin=caller.is_admin)
        except AdapterRejected as error:
            raise AdapterRejected(f"`lora_id`: {error.message}", param="lora_id") from None

    async def plan(
        self,
        fields: GenerateFields,
        caller: Caller,
        *,
        answer_id: str | None = None,
        adapter: AdapterVersion | None = None,
    ) -> Plan:
        """Raises what is wrong with the request, or ClusterUnavailable. ``answer_id`` is by default the cluster's.

        ``adapter`` is what ``fields.lora_id`` was found to mean, where that has been looked up.
        """
        try:
            self._admission.check()
            return await self._plan(fields, caller, answer_id, adapter)
        except Exception as error:
            self.figures.refused(outcome_of(error))
            raise

    async def _plan(
        self, fields: GenerateFields, caller: Caller, answer_id: str | None, adapter: AdapterVersion | None
    ) -> Plan:
        arrival_ns, arrived_s = time.time_ns(), time.monotonic()
        adapter = adapter or await self.adapter(fields.lora_id, caller)
        prompt_ids = await self._prompt_ids(fields)
        max_tokens = answer_room(fields, len(prompt_ids), self._max_context, self._client.limits)
        # After the lengths: a prompt that is far too long is refused before each of its ids is looked at.
        check_vocabulary(fields.input_ids or (), "input_ids", self._model.vocab_size)
        check_vocabulary(fields.stop_token_ids or (), "stop_token_ids", self._model.vocab_size)
        sampling = sampling_params(fields, self._model.generation, max_tokens, seed=secrets.randbits(64))
        request_id = cluster_request_id()
        ref = adapter.ref if adapter else None
        request = Request(request_id, arrival_ns, prompt_ids, sampling, ref, tenant=caller.tenant)
        return Plan(
            request=request,
            caller=caller,
            answer_id=answer_id or request.request_id,
            lora_id=fields.lora_id if adapter else None,
            adapter=adapter,
            stops=tuple(fields.stop or ()),
            end_ids=sampling.end_ids(self._model.generation.eos_token_ids),
            arrived_s=arrived_s,
        )

    def quota(self, caller: Caller) -> TenantQuota:
        """Of the caller's tenant, now."""
        return self._registry.snapshot.tenant(caller.tenant).quota

    async def start(self, plan: Plan, on_ready: Callable[[], None], backlog: Backlog) -> Answering:
        """Runs a plan; whoever gets the answering must close it. Raises ClusterUnavailable.

        ``on_ready`` is called when it begins to have something to take; what waits is counted in ``backlog``.
        """
        self._admission.enter()
        tenant, num_prompt_tokens = plan.caller.tenant, len(plan.request.prompt_ids)
        adapter = plan.adapter.full_name if plan.adapter else self._base_name
        figures = self.figures.begin(plan.arrived_s, num_prompt_tokens, adapter=adapter, tenant=tenant)
        charge = self._meter.begin(tenant, plan.adapter, num_prompt_tokens)

        def account(ending: Ending) -> None:
            charge.add_gpu_time(ending.gpu_s)
            self.figures.ended_in_cluster(ending)

        request, span = self._spans.begin(plan.request, adapter) if self._spans else (plan.request, None)
        told = _Told(request, adapter, figures, span)
        try:
            live = await self._client.start(request, self.quota(plan.caller), on_ready, backlog, account)
        except BaseException as error:
            figures.outcome = outcome_of(error)
            figures.end(time.monotonic())
            self._admission.leave()
            self._tell_end(told)
            raise
        text = TextStream(
            self._tokenizer, plan.request, answer_id=plan.answer_id, stops=plan.stops, end_ids=plan.end_ids
        )
        log_added(request, adapter)
        return Answering(live, text, figures, charge, partial(self._release, told), lora_id=plan.lora_id)

    async def stream(self, plan: Plan) -> AsyncGenerator[Frame, None]:
        """Runs a plan for one reader; the last frame has a finish_reason. Closing it early cancels the request.

        Raises what the cluster ended the request with, as one of the PunicaErrors.
        """
        ready = asyncio.Event()
        answering = await self.start(plan, ready.set, Backlog())
        try:
            while True:
                await ready.wait()
                ready.clear()
                frame = answering.take()
                yield frame
                if frame.finish_reason:
                    return
        finally:
            answering.close()

    def _release(self, told: "_Told", live: LiveRequest) -> None:
        self._client.stop(live)
        self._admission.leave()
        self._tell_end(told)

    def _tell_end(self, told: "_Told") -> None:
        if self._logs_requests:
            log_end(told.request, told.adapter, told.figures, time.monotonic())
        if self._spans and told.span:
            self._spans.end(told.span, told.figures)

    async def _prompt_ids(self, fields: GenerateFields) -> tuple[int, ...]:
        if (fields.prompt is None) == (fields.input_ids is None):
            raise InvalidRequest("give exactly one of `prompt` and `input_ids`", param="prompt")
        if fields.input_ids is not None:
            return _not_empty(fields.input_ids, "input_ids")
        assert fields.prompt is not None
        if len(fields.prompt) <= MAX_INLINE_CHARS:
            return _not_empty(self._tokenizer.encode(fields.prompt) if fields.prompt else (), "prompt")
        return _not_empty(await asyncio.to_thread(self._tokenizer.encode, fields.prompt), "prompt")


def check_vocabulary(token_ids: Sequence[int], param: str, vocab_size: int) -> None:
    """Raises InvalidRequest for the first id that is no token."""
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            message = f"`{param}.{index}`: {reprlib.repr(token_id)} is no token id; they go from 0 to {vocab_size - 1}"
            raise InvalidRequest(message, param=f"{param}.{index}")


def answer_room(fields: GenerateFields, num_prompt_tokens: int, max_context: int, limits: Limits | None) -> int:
    """The most tokens that the answer may have. Raises InvalidRequest where the request asks for too much."""
    most, holder = max_context, "the context"
    if limits and limits.max_request_tokens is not None and limits.max_request_tokens < most:
        most, holder = limits.max_request_tokens, "the largest KvCache of the cluster"
    room = most - num_prompt_tokens
    if room < 1:
        param = "prompt" if fields.input_ids is None else "input_ids"
        message = (
            f"`{param}` has {num_prompt_tokens} tokens, but {holder} holds {most}, the answer's included; shorten it"
        )
        raise InvalidRequest(message, param=param)
    max_tokens = fields.max_tokens or room
    if max_tokens > room:
        prompt = counted(num_prompt_tokens, "token")
        message = (
            f"`max_tokens` is {max_tokens}, but {holder} holds {most} tokens, which leaves {room} after the prompt's"
            f" {prompt}"
        )
        raise InvalidRequest(message, param="max_tokens")
    if fields.min_tokens > max_tokens:
        message = f"`min_tokens` is {fields.min_tokens}, more than the {max_tokens} that the answer may have"
        raise InvalidRequest(message, param="min_tokens")
    return max_tokens


def sampling_params(
    fields: GenerateFields, defaults: GenerationDefaults, max_tokens: int, *, seed: int
) -> SamplingParams:
    """The client's choices, and the model's defaults where it made none. ``seed`` is taken where it gave none."""
    return SamplingParams(
        temperature=_first(fields.temperature, defaults.temperature),
        top_p=_first(fields.top_p, defaults.top_p),
        top_k=_first(fields.top_k, defaults.top_k),
        min_p=_first(fields.min_p, defaults.min_p),
        repetition_penalty=_first(fields.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=_first(fields.seed, seed),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=fields.ignore_eos,
        min_tokens=fields.min_tokens,
        max_tokens=max_tokens,
        logprobs=fields.logprobs,
    )


def _first(value: T | None, default: T) -> T:
    return default if value is None else value


def _not_empty(token_ids: Sequence[int], param: str) -> tuple[int, ...]:
    if not token_ids:
        raise InvalidRequest(f"`{param}` is empty; it needs at least one token", param=param)
    return tuple(token_ids)
