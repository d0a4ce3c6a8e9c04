"""Turns checked bodies into requests of the cluster, and the cluster's deliveries into frames of an answer."""

import asyncio
import reprlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, TypeVar

import msgspec

from punica_frontend.api.caller import Caller
from punica_frontend.api.schemas import GenerateFields
from punica_frontend.generation.admission import Admission
from punica_frontend.generation.answers import Frame
from punica_frontend.generation.prompts import PromptEncoder
from punica_frontend.generation.request_ids import cluster_request_id
from punica_frontend.generation.request_log import log_added, log_end
from punica_frontend.generation.request_slo import promised
from punica_frontend.generation.request_spans import FrontendSpans
from punica_frontend.generation.response_stream import ResponseStream
from punica_frontend.generation.text_stream import TextStream
from punica_frontend.metrics.metrics import Metrics, RequestMetrics, RequestParams, outcome_of
from punica_frontend.scheduler_link.live_request import Backlog, LiveRequest
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_frontend.tenancy.meter import BilledPrompt, Charge, Meter
from punica_serve.base_model.generation_config import GenerationDefaults
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected, ContextOverflow, InvalidRequest
from punica_serve.numbers import counted
from punica_serve.process.tracing import Span, SpanSink
from punica_serve.protocol import Ending, Limits, Request, SamplingParams, Slo, TenantQuota
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry
from punica_serve.text.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """A request that is ready to be added, with what only this frontend needs to know."""

    request: Request
    caller: Caller
    #: The request's id in frames to the client.
    answer_id: str
    #: The client's name for the adapter; None for the base model.
    lora_id: str | None
    #: The newest version when the request arrived; the request keeps it.
    adapter: AdapterVersion | None
    stops: tuple[str, ...]
    #: Tokens that end the answer and add no text.
    end_ids: frozenset[int]
    #: Shared by all choices of the prompt.
    billed_prompt: BilledPrompt
    #: When the request arrived, on the monotonic clock.
    arrived_s: float
    #: Choices of the prompt, on the first of them; 0 on the others.
    num_choices: int = 1


@dataclass(frozen=True, slots=True)
class _RequestSummary:
    """The facts that are logged and traced at a request's end."""

    request: Request
    answer_id: str
    adapter: str
    metrics: RequestMetrics
    span: Span | None
    charge: Charge


class Generator:
    """Plans requests and starts them while ``admission`` is open.

    ``metrics`` count their outcomes, and ``meter`` their usage.
    """

    def __init__(
        self,
        client: SchedulerClient,
        registry: Registry,
        tokenizer: Tokenizer,
        prompts: PromptEncoder,
        model: ModelConfig,
        admission: Admission,
        metrics: Metrics,
        meter: Meter,
        *,
        base_name: str,
        max_context: int,
        logs_requests: bool = True,
        sink: SpanSink | None = None,
    ) -> None:
        """``base_name`` is the API's name for the base model; ``max_context`` limits prompt plus answer, in tokens."""
        self._client = client
        self._registry = registry
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._model = model
        self._admission = admission
        #: Counts the outcomes of requests.
        self.metrics = metrics
        self._meter = meter
        self._base_name = base_name
        self._max_context = max_context
        self._logs_requests = logs_requests
        self._spans = FrontendSpans(sink) if sink else None

    async def adapter(self, lora_id: str | None, caller: Caller) -> AdapterVersion | None:
        """Returns the adapter that the caller means by a name; None for the base model.

        Raises AdapterNotFound, AdapterRejected for one that can't be served, and InvalidRequest for an ambiguous name.
        """
        if lora_id is None or lora_id == self._base_name:
            return None
        try:
            adapter = await self._registry.adapter(caller.tenant_id, lora_id, is_admin=caller.is_admin)
            self._registry.snapshot.check_served(adapter)
            return adapter
        except AdapterRejected as error:
            raise AdapterRejected(f"`lora_id`: {error.message}", param="lora_id") from None

    async def plan(
        self,
        fields: GenerateFields,
        caller: Caller,
        *,
        answer_id: str | None = None,
        adapter: AdapterVersion | None = None,
    ) -> RequestPlan:
        """Checks and tokenizes a request. Raises InvalidRequest and other client errors, or ClusterUnavailable.

        ``answer_id`` defaults to the cluster's request id. ``adapter`` is what ``fields.lora_id`` means, if the caller
        has looked it up already.
        """
        try:
            self._admission.check()
            return await self._plan(fields, caller, answer_id, adapter)
        except Exception as error:
            self.metrics.refused(outcome_of(error))
            raise

    async def _plan(
        self, fields: GenerateFields, caller: Caller, answer_id: str | None, adapter: AdapterVersion | None
    ) -> RequestPlan:
        arrival_ns, arrived_s = time.time_ns(), time.monotonic()
        slo = self._slo(fields, caller)
        adapter = adapter or await self.adapter(fields.lora_id, caller)
        prompt_ids = await self._prompt_ids(fields, caller)
        defaults = self._model.generation
        max_tokens = answer_room(
            fields,
            len(prompt_ids),
            self._max_context,
            self._client.limits,
            last_request_tokens=self._client.last_request_tokens,
            default=defaults.max_tokens,
        )
        # After the length check: a prompt that is far too long is refused before each id is checked.
        check_vocabulary(fields.input_ids or (), "input_ids", self._model.vocab_size)
        check_vocabulary(fields.stop_token_ids or (), "stop_token_ids", self._model.vocab_size)
        sampling = sampling_params(fields, defaults, max_tokens, seed=secrets.randbits(64))
        request_id = cluster_request_id()
        ref = adapter.ref if adapter else None
        request = Request(
            request_id,
            arrival_ns,
            prompt_ids,
            sampling,
            ref,
            tenant_id=caller.tenant_id,
            tenant=caller.tenant,
            slo=slo,
            cache_salt=fields.cache_salt,
        )
        return RequestPlan(
            request=request,
            caller=caller,
            answer_id=answer_id or request.request_id,
            lora_id=fields.lora_id if adapter else None,
            adapter=adapter,
            stops=tuple(_first(fields.stop, defaults.stop)),
            end_ids=sampling.end_ids(defaults.eos_token_ids),
            billed_prompt=BilledPrompt(len(prompt_ids)),
            arrived_s=arrived_s,
        )

    def quota(self, caller: Caller) -> TenantQuota:
        """Returns the current quota of the caller's tenant."""
        return self._registry.snapshot.tenant_of(caller.tenant_id).quota

    def _slo(self, fields: GenerateFields, caller: Caller) -> Slo | None:
        """Fixes the promises of a request that has arrived: a later change of its tenant's counts for later ones."""
        own = fields.slo.slo if fields.slo else None
        return promised(own, self._registry.snapshot.tenant_of(caller.tenant_id).slo, self._client.limits)

    async def start(self, plan: RequestPlan, on_ready: Callable[[], None], backlog: Backlog) -> ResponseStream:
        """Runs a plan. The caller must close the stream. Raises ClusterUnavailable.

        ``on_ready`` is called whenever the stream has output to take; untaken output counts towards ``backlog``.
        """
        self._admission.enter()
        tenant, max_tokens = plan.caller.tenant, plan.request.sampling.max_tokens
        params = RequestParams(len(plan.request.prompt_ids), max_tokens, plan.num_choices, plan.request.slo)
        adapter = plan.adapter.full_name if plan.adapter else self._base_name
        metrics = self.metrics.begin(plan.arrived_s, params, adapter=adapter, tenant=tenant)
        charge = self._meter.begin(plan.caller, plan.adapter, plan.billed_prompt)

        def account(ending: Ending) -> None:
            charge.add_gpu_time(ending.gpu_s)
            metrics.ended_in_cluster(ending)

        request, span = self._spans.begin(plan.request, adapter) if self._spans else (plan.request, None)
        summary = _RequestSummary(request, plan.answer_id, adapter, metrics, span, charge)
        try:
            live = await self._client.start(request, self.quota(plan.caller), on_ready, backlog, account)
        except BaseException as error:
            metrics.outcome = outcome_of(error)
            metrics.end(time.monotonic())
            self._admission.leave()
            self._report_end(summary)
            raise
        text = TextStream(
            self._tokenizer, plan.request, answer_id=plan.answer_id, stops=plan.stops, end_ids=plan.end_ids
        )
        log_added(request, adapter)
        return ResponseStream(live, text, metrics, charge, partial(self._release, summary), lora_id=plan.lora_id)

    async def stream(self, plan: RequestPlan) -> AsyncGenerator[Frame, None]:
        """Runs a plan for one reader; the last frame has a finish_reason. Closing it early cancels the request.

        Raises the PunicaError with which the cluster ended the request.
        """
        ready = asyncio.Event()
        stream = await self.start(plan, ready.set, Backlog())
        try:
            while True:
                await ready.wait()
                ready.clear()
                frame = stream.take()
                yield frame
                if frame.finish_reason:
                    return
        finally:
            stream.close()

    def _release(self, summary: "_RequestSummary", live: LiveRequest) -> None:
        self._client.stop(live)
        self._admission.leave()
        self._report_end(summary)

    def _report_end(self, summary: "_RequestSummary") -> None:
        promises = summary.metrics.promises
        if promises:
            summary.charge.add_promises(promises)
            self._client.report_promises(promises)
        if self._logs_requests:
            log_end(summary.request, summary.answer_id, summary.adapter, summary.metrics, time.monotonic())
        if self._spans and summary.span:
            self._spans.end(summary.span, summary.metrics)

    async def _prompt_ids(self, fields: GenerateFields, caller: Caller) -> tuple[int, ...]:
        if (fields.prompt is None) == (fields.input_ids is None):
            raise InvalidRequest("give exactly one of `prompt` and `input_ids`", param="prompt")
        if fields.input_ids is not None:
            return _not_empty(fields.input_ids, "input_ids")
        assert fields.prompt is not None
        ids = await self._prompts.ids(fields.prompt, caller.tenant_id, param="prompt") if fields.prompt else ()
        return _not_empty(ids, "prompt")


def check_vocabulary(token_ids: Sequence[int], param: str, vocab_size: int) -> None:
    """Raises InvalidRequest for the first id outside the vocabulary."""
    try:
        msgspec.convert(token_ids, _ids_below(vocab_size))  # a fifth of a loop's time
    except msgspec.ValidationError:
        _refuse_first_outside(token_ids, param, vocab_size)


@cache
def _ids_below(vocab_size: int) -> Any:
    """The type of lists of a vocabulary's ids."""
    return list[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]]


def _refuse_first_outside(token_ids: Sequence[int], param: str, vocab_size: int) -> None:
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            message = (
                f"`{param}.{index}`: {reprlib.repr(token_id)} is not a token id; valid ids are 0 to {vocab_size - 1}"
            )
            raise InvalidRequest(message, param=f"{param}.{index}")


def answer_room(
    fields: GenerateFields,
    num_prompt_tokens: int,
    max_context: int,
    limits: Limits | None,
    *,
    last_request_tokens: int | None = None,
    default: int | None = None,
) -> int:
    """Returns the most tokens that the answer may have. ``default`` is the model's own limit; None means all the room.

    ``last_request_tokens`` bound an answer whose length nobody asked for, also while no GPU is there: it waits for one,
    and must fit the one that comes back.
    Raises ContextOverflow if there is no room, and InvalidRequest if ``min_tokens`` does not fit.
    """
    most, why = max_context, ""
    if limits and limits.max_request_tokens is not None and limits.max_request_tokens < most:
        most, why = limits.max_request_tokens, " here, as much as the cluster's largest KvCache holds"
    # OpenAI's wording: LiteLLM recognizes an overflow by this text, not by its code.
    limit = f"this model's maximum context length is {most} tokens{why}"
    room = most - num_prompt_tokens
    if room < 1:
        param = "prompt" if fields.input_ids is None else "input_ids"
        message = f"`{param}` has {num_prompt_tokens} tokens, but {limit}, including the answer; shorten it"
        raise ContextOverflow(message, param=param)
    min_tokens = fields.min_tokens or 0
    unasked = room
    if last_request_tokens is not None and last_request_tokens > num_prompt_tokens:
        unasked = min(room, last_request_tokens - num_prompt_tokens)
    max_tokens = fields.max_tokens or min(room, max(min(unasked, default or unasked), min_tokens))
    if max_tokens > room:
        prompt = counted(num_prompt_tokens, "token")
        message = f"`max_tokens` is {max_tokens}, but {limit}, which leaves {room} after the prompt's {prompt}"
        raise ContextOverflow(message, param="max_tokens")
    if min_tokens > max_tokens:
        message = f"`min_tokens` is {min_tokens}, more than the {max_tokens} tokens that the answer may have"
        raise InvalidRequest(message, param="min_tokens")
    return max_tokens


def sampling_params(
    fields: GenerateFields, defaults: GenerationDefaults, max_tokens: int, *, seed: int
) -> SamplingParams:
    """Combines the client's choices with the model's defaults. ``seed`` is used if the client gave none."""
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
        min_tokens=_first(fields.min_tokens, min(defaults.min_tokens, max_tokens)),
        max_tokens=max_tokens,
        logprobs=fields.logprobs,
    )


def _first(value: T | None, default: T) -> T:
    return default if value is None else value


def _not_empty(token_ids: Sequence[int], param: str) -> tuple[int, ...]:
    if not token_ids:
        raise InvalidRequest(f"`{param}` is empty; it needs at least one token", param=param)
    return tuple(token_ids)
