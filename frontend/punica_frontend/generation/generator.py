"""Runs requests in the cluster."""

from collections.abc import Callable

from punica_frontend.api.caller import Caller
from punica_frontend.api.schemas import GenerateFields
from punica_frontend.generation.admission import Admission
from punica_frontend.generation.input_processor import InputProcessor
from punica_frontend.generation.request_account import RequestAccounts
from punica_frontend.generation.request_plan import RequestPlan
from punica_frontend.generation.response_stream import ResponseStream
from punica_frontend.generation.text_stream import TextStream
from punica_frontend.metrics.metrics import Metrics, outcome_of
from punica_frontend.scheduler_link.live_request import Backlog, LiveRequest
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.protocol import TenantQuota
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry
from punica_serve.text.tokenizer import Tokenizer


class Generator:
    """Plans requests and starts them while ``admission`` is open."""

    def __init__(
        self,
        client: SchedulerClient,
        registry: Registry,
        tokenizer: Tokenizer,
        inputs: InputProcessor,
        admission: Admission,
        accounts: RequestAccounts,
    ) -> None:
        self._client = client
        self._registry = registry
        self._tokenizer = tokenizer
        self._inputs = inputs
        self._admission = admission
        self._accounts = accounts

    @property
    def metrics(self) -> Metrics:
        """Those that count the outcomes of requests."""
        return self._accounts.metrics

    async def adapter(self, lora_id: str | None, caller: Caller) -> AdapterVersion | None:
        """See ``InputProcessor.adapter``."""
        return await self._inputs.adapter(lora_id, caller)

    async def plan(
        self,
        fields: GenerateFields,
        caller: Caller,
        *,
        answer_id: str | None = None,
        adapter: AdapterVersion | None = None,
    ) -> RequestPlan:
        """Plans a request as ``InputProcessor.plan`` does, and counts it if it is refused."""
        try:
            self._admission.check()
            return await self._inputs.plan(fields, caller, answer_id=answer_id, adapter=adapter)
        except Exception as error:
            self.metrics.refused(outcome_of(error))
            raise

    def quota(self, caller: Caller) -> TenantQuota:
        """Returns the current quota of the caller's tenant."""
        return self._registry.snapshot.tenant_of(caller.tenant_id).quota

    async def start(self, plan: RequestPlan, on_ready: Callable[[], None], backlog: Backlog) -> ResponseStream:
        """Runs a plan. The caller must close the stream. Raises ClusterUnavailable.

        ``on_ready`` is called whenever the stream has output to take; untaken output counts towards ``backlog``.
        """
        self._admission.enter()
        account = self._accounts.open(plan)
        try:
            quota = self.quota(plan.caller)
            live = await self._client.start(account.request, quota, on_ready, backlog, account.ended_in_cluster)
        except BaseException as error:
            account.metrics.outcome = outcome_of(error)
            self._admission.leave()
            account.close()
            raise
        account.added()
        text = TextStream(
            self._tokenizer, plan.request, answer_id=plan.answer_id, stops=plan.stops, end_ids=plan.end_ids
        )
        return ResponseStream(live, text, account, self._release, lora_id=plan.lora_id)

    def _release(self, live: LiveRequest) -> None:
        try:
            self._client.stop(live)
        finally:
            self._admission.leave()
