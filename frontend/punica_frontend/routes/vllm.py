"""vLLM's routes for adapters, with its bodies and answers."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from punica_frontend.adapters.addresses import changeable
from punica_frontend.adapters.bodies import LoadBody, UnloadBody
from punica_frontend.adapters.reconciler import AdapterReconciler
from punica_frontend.adapters.registration import Registrar, RegistrationRequest
from punica_frontend.adapters.vllm_answers import VllmErrorBody, name_is_taken, uri_of, vllm_error, vllm_refusal
from punica_frontend.api.caller import Caller, caller_of
from punica_frontend.api.errors import error_of_body
from punica_frontend.api.response_docs import Responses, refusals, text_answer
from punica_frontend.api.unreadable_body import what_failed
from punica_frontend.http.connection import CLIENT_CLOSED, run_while_connected
from punica_serve.errors import AdapterNotFound, AdapterRejected, Conflict, PunicaError
from punica_serve.registry.names import MAX_SHOWN_CHARS
from punica_serve.registry.registry import Registry
from punica_serve.store.sources import Sources

#: vLLM answers once the adapter is unloaded. Here a longer deletion continues after the answer.
UNLOAD_WAIT_S = 5.0

_LOADED: Responses = {
    200: text_answer("`Success: LoRA adapter 'NAME' added successfully.`"),
    **refusals(400, 403, 404, 413, 429, 500, 503, body=VllmErrorBody),
}
_UNLOADED: Responses = {
    200: text_answer("`Success: LoRA adapter 'NAME' removed successfully.`"),
    **refusals(400, 403, 404, 500, 503, body=VllmErrorBody),
}


class _VllmRoute(APIRoute):
    """Refuses invalid bodies in vLLM's format."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_wrong_bodies(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return vllm_error(400, error_of_body(error).message)
            except HTTPException as error:
                return vllm_error(error.status_code, what_failed(error))

        return handle_wrong_bodies


def vllm_router(registry: Registry, registrar: Registrar, sources: Sources, reconciler: AdapterReconciler) -> APIRouter:
    router = APIRouter(tags=["vLLM"], route_class=_VllmRoute)

    @router.post(
        "/v1/load_lora_adapter",
        summary="Register an adapter, as vLLM does",
        response_class=PlainTextResponse,
        responses=_LOADED,
    )
    async def load(body: LoadBody, request: Request) -> Response:
        """The same as POST /v1/adapters."""
        caller = caller_of(request)
        if not body.lora_name or not body.lora_path:
            return vllm_error(400, "Both 'lora_name' and 'lora_path' must be provided.")
        if not body.load_inplace and _is_taken(registry, caller, body.lora_name):
            return name_is_taken(body.lora_name)
        uri = uri_of(body.lora_path)
        wanted = RegistrationRequest(body.lora_name, uri, must_be_new=not body.load_inplace)
        fetch = partial(sources.fetch, uri, is_admin=caller.is_admin)
        try:
            done = await run_while_connected(request.receive, registrar.register(caller, wanted, fetch))
        except PunicaError as error:
            return _not_loaded(body.lora_name, body.lora_path, wanted, error)
        if done is None:
            return Response(status_code=CLIENT_CLOSED)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @router.post(
        "/v1/unload_lora_adapter",
        summary="Delete an adapter, as vLLM does",
        response_class=PlainTextResponse,
        responses=_UNLOADED,
    )
    async def unload(body: UnloadBody, request: Request) -> Response:
        """The same as DELETE /v1/adapters/{name}."""
        caller = caller_of(request)
        if not body.lora_name:
            return vllm_error(400, "'lora_name' needs to be provided to unload a LoRA adapter.")
        try:
            adapter = await changeable(registry, caller, body.lora_name)
            deleted = await registry.delete(adapter.tenant_id, adapter.name, by=caller.name)
        except PunicaError as error:
            return _not_unloaded(body.lora_name, error)
        await reconciler.wait_deleted(deleted, UNLOAD_WAIT_S)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return router


def _not_loaded(name: str, path: str, wanted: RegistrationRequest, error: PunicaError) -> Response:
    if isinstance(error, AdapterRejected) and error.param == "uri":
        return vllm_error(404, f"Loading lora {name} failed: No adapter found for {path}: {error.message}")
    if isinstance(error, Conflict) and wanted.must_be_new and error.retry_after_s is None:
        return name_is_taken(name)
    return vllm_refusal(error)


def _not_unloaded(name: str, error: PunicaError) -> Response:
    if isinstance(error, AdapterNotFound):
        return vllm_error(404, f"The lora adapter '{name[:MAX_SHOWN_CHARS]}' cannot be found.")
    if isinstance(error, Conflict):  # an adapter of the config file
        return vllm_error(400, error.message)
    return vllm_refusal(error)


def _is_taken(registry: Registry, caller: Caller, name: str) -> bool:
    """Whether the caller's requests for this name would get any adapter."""
    try:
        registry.snapshot.adapter(caller.tenant_id, name, is_admin=caller.is_admin)
    except AdapterNotFound:
        return False
    except PunicaError:  # it exists but can't be served
        return True
    return True
