"""Turns checked bodies into requests of the cluster: adapter, prompt ids, room for the answer, sampling, promises."""

import secrets
import time
from collections.abc import Sequence

from punica_frontend.api.caller import Caller
from punica_frontend.api.schemas import GenerateFields
from punica_frontend.generation.prompts import PromptEncoder
from punica_frontend.generation.request_ids import cluster_request_id
from punica_frontend.generation.request_limits import answer_room, check_vocabulary
from punica_frontend.generation.request_plan import RequestPlan
from punica_frontend.generation.request_slo import promised
from punica_frontend.generation.sampling_defaults import sampling_params
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_frontend.tenancy.meter import BilledPrompt
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected, InvalidRequest
from punica_serve.protocol import Request, Slo
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry


class InputProcessor:
    """Plans requests of one base model, within the limits that the cluster has reported to ``client``."""

    def __init__(
        self,
        client: SchedulerClient,
        registry: Registry,
        prompts: PromptEncoder,
        model: ModelConfig,
        *,
        base_name: str,
        max_context: int,
    ) -> None:
        """``base_name`` is the API's name for the base model; ``max_context`` limits prompt plus answer, in tokens."""
        self._client = client
        self._registry = registry
        self._prompts = prompts
        self._model = model
        self._base_name = base_name
        self._max_context = max_context

    async def adapter(self, lora_id: str | None, caller: Caller) -> AdapterVersion | None:
        """Returns the adapter that the caller means by a name; None for the base model.

        Raises AdapterNotFound, AdapterRejected for one that can't be served, and InvalidRequest for an ambiguous name.
        """
        if lora_id is None or lora_id == self._base_name:
            return None
        try:
            adapter = await self._registry.adapter(caller.tenant_id, lora_id, is_admin=caller.is_admin)
            self._registry.snapshot.shared.check_served(adapter)
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
        arrival_ns, arrived_s = time.time_ns(), time.monotonic()
        slo = self._slo(fields, caller)
        adapter = adapter or await self.adapter(fields.lora_id, caller)
        prompt_ids = await self._prompt_ids(fields, caller)
        defaults = self._model.generation
        max_tokens = self._max_tokens(fields, len(prompt_ids))
        sampling = sampling_params(fields, defaults, max_tokens, seed=secrets.randbits(64))
        request = Request(
            cluster_request_id(),
            arrival_ns,
            prompt_ids,
            sampling,
            adapter.ref if adapter else None,
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
            stops=tuple(defaults.stop if fields.stop is None else fields.stop),
            end_ids=sampling.end_ids(defaults.eos_token_ids),
            billed_prompt=BilledPrompt(len(prompt_ids)),
            arrived_s=arrived_s,
        )

    def _max_tokens(self, fields: GenerateFields, num_prompt_tokens: int) -> int:
        """The most tokens of the answer. Raises ContextOverflow, and InvalidRequest for ids outside the vocabulary."""
        max_tokens = answer_room(
            fields,
            num_prompt_tokens,
            self._max_context,
            self._client.limits,
            last_request_tokens=self._client.last_request_tokens,
            default=self._model.generation.max_tokens,
        )
        # After the length check: a prompt that is far too long is refused before each id is checked.
        check_vocabulary(fields.input_ids or (), "input_ids", self._model.vocab_size)
        check_vocabulary(fields.stop_token_ids or (), "stop_token_ids", self._model.vocab_size)
        return max_tokens

    def _slo(self, fields: GenerateFields, caller: Caller) -> Slo | None:
        """Fixes the promises of a request that has arrived: a later change of its tenant's counts for later ones."""
        own = fields.slo.slo if fields.slo else None
        return promised(own, self._registry.snapshot.tenant_of(caller.tenant_id).slo, self._client.limits)

    async def _prompt_ids(self, fields: GenerateFields, caller: Caller) -> tuple[int, ...]:
        if (fields.prompt is None) == (fields.input_ids is None):
            raise InvalidRequest("give exactly one of `prompt` and `input_ids`", param="prompt")
        if fields.input_ids is not None:
            return _not_empty(fields.input_ids, "input_ids")
        assert fields.prompt is not None
        ids = await self._prompts.ids(fields.prompt, caller.tenant_id, param="prompt") if fields.prompt else ()
        return _not_empty(ids, "prompt")


def _not_empty(token_ids: Sequence[int], param: str) -> tuple[int, ...]:
    if not token_ids:
        raise InvalidRequest(f"`{param}` is empty; it needs at least one token", param=param)
    return tuple(token_ids)
