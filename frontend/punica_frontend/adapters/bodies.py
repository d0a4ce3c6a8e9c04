"""Bodies of the adapters' routes."""

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from punica_frontend.schemas import MAX_ID_CHARS, Strict, Text

MAX_URI_CHARS = 2048
_MAX_GPUS = 4096

#: A parameter of paths. A slash may be in it.
AdapterPath = Annotated[str, Path(description="The adapter's name, or `tenant/name`.")]

#: What an adapter may be called is the registry's to say, in one way for all routes.
AdapterName = Annotated[Text, Field(examples=["roman"])]


class RegisterBody(Strict):
    """Body of POST /v1/adapters, where the cluster fetches the files."""

    name: AdapterName = Field(description="By which it is asked for. A name that is taken gets a new version.")
    uri: Text = Field(
        min_length=1,
        max_length=MAX_URI_CHARS,
        description="Of a PEFT folder, as in `s3://bucket/adapters/roman`: s3, hf or https, as far as allowed.",
    )
    pinned: bool = Field(False, description="Keep it in the host memory of every runner.")
    prefetch: bool = Field(False, description="Bring it to all GPUs at once, before anyone asks for it.")


class PrefetchBody(Strict):
    """Body of POST /v1/adapters/{name}/prefetch."""

    gpus: list[Annotated[Text, Field(min_length=1, max_length=MAX_ID_CHARS)]] | None = Field(
        None, max_length=_MAX_GPUS, fail_fast=True, description="UUIDs, as in /v1/cluster. All GPUs by default."
    )


class _VllmBody(BaseModel):
    """vLLM's clients send more fields than these, as its versions go by."""

    model_config = ConfigDict(frozen=True)


class LoadBody(_VllmBody):
    """Body of POST /v1/load_lora_adapter."""

    lora_name: Text = ""
    lora_path: Text = Field(
        "",
        max_length=MAX_URI_CHARS,
        description="A folder of the frontend's host, a URI, or OWNER/NAME of the Hugging Face Hub.",
    )
    load_inplace: bool = Field(False, description="Make a new version if the name is taken.")


class UnloadBody(_VllmBody):
    """Body of POST /v1/unload_lora_adapter."""

    lora_name: Text = ""
    lora_int_id: int | None = Field(None, description="Not used, as in vLLM.")
