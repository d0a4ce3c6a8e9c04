"""What OpenAI's API tells of a model. Pure."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from punica_serve.registry.records import AdapterVersion

#: Who the base model belongs to.
OWNER = "punica-serve"


class ModelCard(msgspec.Struct, frozen=True):
    """The base model, or an adapter."""

    #: The shortest name by which the caller can ask for it.
    id: str
    #: Unix time.
    created: int
    #: Whose it is: a tenant.
    owned_by: str
    #: The base model's name. Never where files lie.
    root: str
    #: What it was trained on; the base model has none.
    parent: str | None
    #: Tokens of prompt and answer.
    max_model_len: int
    permission: list[Any] = []
    object: Literal["model"] = "model"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"


@dataclass(frozen=True, slots=True)
class CardMaker:
    """Makes cards."""

    base_name: str
    max_context: int
    #: Since when the base model is served.
    created_s: int

    def of_base(self) -> ModelCard:
        return ModelCard(self.base_name, self.created_s, OWNER, self.base_name, None, self.max_context)

    def of_adapter(self, adapter: AdapterVersion, name: str) -> ModelCard:
        """``name`` is the caller's for it."""
        base_name = self.base_name
        return ModelCard(name, int(adapter.created_s), adapter.tenant, base_name, base_name, self.max_context)
