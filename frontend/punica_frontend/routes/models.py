"""GET /v1/models: the base model and its LoRA models, in OpenAI's shape."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from punica_serve.adapters.catalog import AdapterCatalog


def models_router(
    catalog: AdapterCatalog, *, base_name: str, base_root: str, max_context: int, created_s: int
) -> APIRouter:
    """``base_root`` is the base model's folder; ``created_s`` the time since when the models are served."""
    router = APIRouter(tags=["models"])

    def card(name: str, *, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created_s,
            "owned_by": "punica-serve",
            "root": root,
            "parent": parent,
            "max_model_len": max_context,
            "permission": [],
        }

    @router.get("/v1/models", summary="List the models")
    async def models() -> JSONResponse:
        """The base model first, then every LoRA model that is served."""
        adapters = [card(entry.name, root=entry.ref.uri, parent=base_name) for entry in catalog.entries]
        return JSONResponse({"object": "list", "data": [card(base_name, root=base_root, parent=None), *adapters]})

    return router
