"""Turns commands into calls of the engine, and steps into reports.

The engine knows requests, and the scheduler knows assignments; ``LiveAssignments`` maps one to the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, assert_never

from msgspec.structs import replace

from punica_runner.request_spans import RequestSpans
from punica_serve.errors import InvalidRequest, PunicaError
from punica_serve.errors.invariants import require
from punica_serve.process.logs import about, named
from punica_serve.protocol import (
    AdaptersCached,
    AssignmentId,
    AssignmentsFailed,
    Forget,
    Reset,
    StartRequest,
    StepReport,
    StopRequest,
    Warm,
    WireError,
)
from punica_serve.worker_state.live_assignments import LiveAssignments
from punica_serve.worker_state.reported_adapters import ReportedAdapters

if TYPE_CHECKING:  # only the worker process imports torch
    from punica_serve.engine.engine import Engine
    from punica_serve.engine.step_output import StepOutput
    from punica_serve.process.tracing import SpanSink

log = logging.getLogger(__name__)

Command = StartRequest | StopRequest | Warm | Forget | Reset
Report = StepReport | AssignmentsFailed | AdaptersCached


class StepLoop:
    """Call ``apply`` with the commands that have arrived, then ``step`` once. Both return reports to send."""

    def __init__(self, engine: Engine, gpu_uuid: str, gpu_name: str, sink: SpanSink | None = None) -> None:
        self._engine = engine
        self._gpu_uuid = gpu_uuid
        #: Used in logs alone; traces have both.
        self._gpu_name = gpu_name
        self._spans = RequestSpans(sink, gpu_uuid, gpu_name) if sink else None
        self._epoch = 0
        self._applied_seq = 0
        #: The incarnation of all assignments here.
        self._incarnation = 0
        self._num_steps = 0
        #: Numbers of the newest step.
        self._batch_size = self._num_adapters = 0
        self._assignments = LiveAssignments()
        self._reported = ReportedAdapters(gpu_uuid)

    def apply(self, commands: Iterable[Command]) -> list[Report]:
        """Applies commands between two steps; returns the reports to send before the next step.

        So a start is acknowledged before it first runs. If it then kills the worker, the scheduler knows that it ran.
        """
        reports: list[Report] = []
        has_news = False
        for command in commands:
            reports += self._apply(command)
            has_news |= not (isinstance(command, Warm) and command.host_only)  # nobody waits for a hint's effect
        return [*reports, self._report()] if has_news else reports

    def step(self) -> tuple[list[Report], bool]:
        """The reports to send, oldest first, and whether the model ran. If not, nothing can run until a wake."""
        output = self._engine.step()
        reports: list[Report] = []
        for failure in output.failures:
            reports += self._failed(failure.request_ids, permanent=failure.permanent, error=failure.error)
        # Failed requests free pages, and an ended batch must be reported once.
        is_news = reports or output.preempted or output.batch_size or self._batch_size
        self._num_steps += output.batch_size > 0
        self._batch_size, self._num_adapters = output.batch_size, output.num_adapters
        if is_news or not self._reported.is_resident_known(self._engine.resident_adapters):
            reports.append(self._report_step(output))
        reports += self._reported.in_host_memory(self._engine.host_cache)
        if is_news and not output.has_run and not self._assignments:
            self._check_idle()
        return reports, output.has_run

    def _check_idle(self) -> None:
        """Audits after the last request: whatever leaked would stay lost until this worker ends."""
        self._engine.check_invariants()
        require(not self._engine.num_requests, "the engine has requests without assignments")

    def _apply(self, command: Command) -> list[Report]:
        match command:
            case StartRequest():
                self._applied_seq = command.seq
                return self._start(command)
            case StopRequest():
                self._applied_seq = command.seq
                self._stop(command.assignment)
            case Warm(host_only=True):
                self._engine.prefetch_to_host(command.adapter)
            case Warm():
                self._engine.prefetch(command.adapter, pin=command.pin)
            case Forget():
                self._engine.evict(command.digest)
            case Reset():
                self._reset(command.epoch)
            case _:
                assert_never(command)
        return []

    def _start(self, command: StartRequest) -> list[Report]:
        request_id = command.request.request_id
        if (old := self._assignments.by_request.get(request_id)) is not None:
            self._stop(old)
        self._assignments.start(request_id, command.assignment)
        self._incarnation = command.assignment.incarnation
        if self._spans:
            self._spans.started(command.request)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("request started", extra=self._about(command))
        try:
            self._engine.add(command.request, may_move=True)
        except InvalidRequest as error:
            # The frontend accepted it, so its model and ours differ. Other requests must not fail for it.
            log.error("request can't run here: %s", error, extra=self._about(command))
            return self._failed((request_id,), permanent=True, error=error)
        return []

    def _about(self, command: StartRequest) -> dict[str, Any]:
        return about(**named(command.request), gpu=self._gpu_name)

    def _stop(self, assignment: AssignmentId) -> None:
        request_id = self._assignments.stop(assignment)
        if request_id is not None:
            self._engine.cancel(request_id)
            if self._spans:
                self._spans.ended(request_id)

    def _reset(self, epoch: int) -> None:
        for assignment in self._assignments:
            self._stop(assignment)
        self._epoch = epoch
        self._applied_seq = 0
        self._reported.reset()
        self._engine.prefix_hints.reset()

    def _failed(self, request_ids: tuple[str, ...], *, permanent: bool, error: PunicaError) -> list[Report]:
        """Reports requests that the engine has dropped or refused."""
        lost = tuple(self._forget(request_id) for request_id in request_ids)
        if not lost:
            return []
        wire_error = WireError.of(error)
        return [AssignmentsFailed(self._gpu_uuid, self._epoch, self._applied_seq, lost, permanent, wire_error)]

    def _forget(self, request_id: str) -> AssignmentId:
        assignment = self._assignments.end(request_id)
        if self._spans:
            self._spans.ended(request_id)
        return assignment

    def _report_step(self, output: StepOutput) -> StepReport:
        tokens, by_request = output.tokens, self._assignments.by_request
        if self._spans:
            self._spans.got_tokens((token.request_id for token in tokens), output.margin)
        assignments = tuple(by_request[token.request_id].counter for token in tokens)
        starved = tuple(by_request[request_id].counter for request_id in output.preempted)
        cached = tuple((by_request[request_id].counter, count) for request_id, count in output.cached)
        finished = tuple((self._forget(request_id).counter, reason) for request_id, reason in output.finished)
        has_logprobs = any(token.logprobs is not None for token in tokens)
        return replace(
            self._report(),
            assignments=assignments,
            positions=tuple(token.position for token in tokens),
            token_ids=tuple(token.token_id for token in tokens),
            logprobs=tuple(token.logprobs for token in tokens) if has_logprobs else (),
            finished=finished,
            starved=starved,
            num_prefill_tokens=output.num_prefill_tokens,
            duration_s=output.duration_s,
            cached=cached,
        )

    def _report(self) -> StepReport:
        """A report of the current state, without tokens."""
        num_queries, num_hits = self._engine.prefix_tokens
        return StepReport(
            gpu_uuid=self._gpu_uuid,
            epoch=self._epoch,
            step=self._num_steps,
            applied_seq=self._applied_seq,
            incarnation=self._incarnation,
            free_kv_pages=self._engine.num_free_kv_pages,
            batch_size=self._batch_size,
            num_prefill_tokens=0,
            num_adapters=self._num_adapters,
            duration_s=0.0,
            resident=self._reported.resident(self._engine.resident_adapters),
            num_shared_kv_pages=self._engine.num_shared_kv_pages,
            num_known_kv_pages=self._engine.num_known_kv_pages,
            prefix_cache_queries=num_queries,
            prefix_cache_hits=num_hits,
            prefix_hints=self._engine.prefix_hints.take(),
        )
