"""Bodies and parameters of the adapters' routes."""

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from punica_frontend.api.schemas import MAX_ID_CHARS, Strict, Text

MAX_URI_CHARS = 2048
_MAX_GPUS = 4096

#: A path parameter that may contain a slash.
AdapterPath = Annotated[str, Path(description="The adapter's name, or `tenant/name`.")]

#: Unrestricted here: the registry checks names, for all routes alike.
AdapterName = Annotated[Text, Field(examples=["roman"])]


class RegisterBody(Strict):
    """Body of POST /v1/adapters, where the cluster fetches the files."""

    name: AdapterName = Field(description="Requests use this name. Registering an existing name makes a new version.")
    uri: Text = Field(
        min_length=1,
        max_length=MAX_URI_CHARS,
        description="A PEFT folder, such as `s3://bucket/adapters/roman`. s3, hf or https, as the operator allows.",
    )
    pinned: bool = Field(False, description="Pin it: keep it in the host memory of every runner.")
    prefetch: bool = Field(False, description="Load it to all GPUs now, before a request asks for it.")


class PrefetchBody(Strict):
    """Body of POST /v1/adapters/{name}/prefetch."""

    gpus: list[Annotated[Text, Field(min_length=1, max_length=MAX_ID_CHARS)]] | None = Field(
        None,
        max_length=_MAX_GPUS,
        fail_fast=True,
        description="UUIDs or names, as in /v1/cluster. All GPUs by default.",
    )


class _VllmBody(BaseModel):
    """A body of vLLM's API. Unknown fields are ignored, since vLLM's versions send different ones."""

    model_config = ConfigDict(frozen=True)


class LoadBody(_VllmBody):
    """Body of POST /v1/load_lora_adapter."""

    lora_name: Text = ""
    lora_path: Text = Field(
        "",
        max_length=MAX_URI_CHARS,
        description="A folder of the frontend's host, a URI, or OWNER/NAME of the Hugging Face Hub.",
    )
    load_inplace: bool = Field(False, description="If the name exists, make a new version.")


class UnloadBody(_VllmBody):
    """Body of POST /v1/unload_lora_adapter."""

    lora_name: Text = ""
    lora_int_id: int | None = Field(None, description="Not used, as in vLLM.")
