"""Bodies of the routes for tenants, keys and sessions, checked strictly."""

from typing import Annotated, Any, Literal, Self

from fastapi import Query
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from punica_frontend.api.schemas import SloBody, Strict, Text

#: A limit, as databases and JSON can represent it.
Limit = Annotated[int, Field(ge=0, le=2**53)]


Force = Annotated[bool, Query(description="Do it even if no valid admin key is left.")]


class LoginBody(Strict):
    """Body of POST /v1/login."""

    key: Text = Field(max_length=256, description="An API key.")


class TenantBody(Strict):
    """Body of PUT /v1/tenants/{tenant}: all its limits and promises. A limit of null is none, 0 allows nothing."""

    suspended: bool = Field(False, description="Its users' keys are refused with 403; everything else stays.")
    max_concurrent: Limit | None = Field(None, description="Requests that run or wait at once.")
    requests_per_min: Limit | None = Field(None, description="Requests in any minute.")
    tokens_per_min: Limit | None = Field(None, description="Tokens of prompts and answers in any minute.")
    max_adapters: Limit | None = Field(None, description="Adapters that it may have.")
    max_adapter_bytes: Limit | None = Field(None, description="Bytes of the weights of its adapters, together.")
    slo: SloBody | None = Field(None, description="Promises of its requests that make none of their own.")


def _without_defaults(schema: dict[str, Any]) -> None:
    for field in schema["properties"].values():
        del field["default"]


def _one_at_least(schema: dict[str, Any]) -> None:
    _without_defaults(schema)
    schema["minProperties"] = 1


class SloPatch(SloBody):
    """The promises to change. Null makes none; a promise that is left out stays."""

    model_config = ConfigDict(json_schema_extra=_one_at_least)

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if not self.model_fields_set:
            raise PydanticCustomError("empty_slo", "Input should have `first_token_s`, `time_per_token_s` or both")
        return self


class TenantPatch(TenantBody):
    """Body of PATCH /v1/tenants/{tenant}: the limits and promises to change."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)

    slo: SloPatch | None = Field(None, description="The promises to change; null makes none.")

    def terms(self) -> dict[str, Any]:
        """Returns the changes under the registry's names of them."""
        changes = self.model_dump(exclude_unset=True)
        if "slo" in changes:
            promises = changes.pop("slo") or dict.fromkeys(SloPatch.model_fields)
            changes |= {f"slo_{name}": seconds for name, seconds in promises.items()}
        return changes


class KeyBody(Strict):
    """Body of POST /v1/keys."""

    tenant: Text = Field(description="The key's tenant.", examples=["acme"])
    role: Literal["admin", "user"] = Field(
        "user", description="An admin may change tenants, keys and all adapters, and drain GPUs."
    )
    name: Text = Field("", max_length=100, description="A label for its owner.", examples=["batch jobs"])
    expires_in_s: Annotated[float, Field(gt=0, le=1e10)] | None = Field(None, description="Null: it never expires.")
