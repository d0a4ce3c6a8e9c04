"""The account of a request: its metrics, its charge, its promises, its span and its lines in the log."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from punica_frontend.generation.request_log import log_added, log_end
from punica_frontend.generation.request_plan import RequestPlan
from punica_frontend.generation.request_spans import FrontendSpans
from punica_frontend.metrics.metrics import Metrics, RequestParams
from punica_frontend.tenancy.meter import Meter
from punica_serve.protocol import Ending, PromiseCounts


@dataclass(frozen=True, slots=True)
class RequestAccounts:
    """Opens an account for each request that starts."""

    #: Counts outcomes.
    metrics: Metrics
    #: Counts usage.
    meter: Meter
    #: Takes judged promises to the cluster.
    report_promises: Callable[[PromiseCounts], None]
    #: Stands for no adapter.
    base_name: str
    logs_requests: bool = True
    #: None: nothing is traced.
    spans: FrontendSpans | None = None

    def open(self, plan: RequestPlan) -> "RequestAccount":
        """Counts a request as live until ``RequestAccount.close``."""
        return RequestAccount(plan, self)


class RequestAccount:
    """One request's account, while it runs."""

    def __init__(self, plan: RequestPlan, accounts: RequestAccounts) -> None:
        self._accounts = accounts
        self._answer_id = plan.answer_id
        self._adapter = plan.adapter.full_name if plan.adapter else accounts.base_name
        max_tokens = plan.request.sampling.max_tokens
        params = RequestParams(len(plan.request.prompt_ids), max_tokens, plan.num_choices, plan.request.slo)
        self.metrics = accounts.metrics.begin(plan.arrived_s, params, adapter=self._adapter, tenant=plan.caller.tenant)
        self.charge = accounts.meter.begin(plan.caller, plan.adapter, plan.billed_prompt)
        #: The plan's request, with its trace context if it is traced.
        self.request, self._span = (
            accounts.spans.begin(plan.request, self._adapter) if accounts.spans else (plan.request, None)
        )

    def added(self) -> None:
        """The cluster has taken the request."""
        log_added(self.request, self._adapter)

    def ended_in_cluster(self, ending: Ending) -> None:
        """Counts the scheduler's report of the request's end, which comes before ``close`` or after it."""
        self.charge.add_gpu_time(ending.gpu_s)
        self.metrics.ended_in_cluster(ending)

    def close(self) -> None:
        """Ends the request, once, with the outcome that its metrics have by now."""
        accounts, metrics = self._accounts, self.metrics
        metrics.end(time.monotonic())
        if metrics.promises:
            self.charge.add_promises(metrics.promises)
            accounts.report_promises(metrics.promises)
        if accounts.logs_requests:
            log_end(self.request, self._answer_id, self._adapter, metrics, time.monotonic())
        if accounts.spans and self._span:
            accounts.spans.end(self._span, metrics)
