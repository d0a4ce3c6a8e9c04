"""Models as OpenAI's API describes them. Pure."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from punica_serve.registry.records import AdapterVersion

#: The owner of the base model.
OWNER = "punica-serve"


class ModelCard(msgspec.Struct, frozen=True):
    """The base model, or an adapter."""

    #: The shortest name with which the caller can request it.
    id: str
    #: Unix time.
    created: int
    #: The tenant that owns it.
    owned_by: str
    #: The base model's name, never a path.
    root: str
    #: The model that it was trained on; the base model has none.
    parent: str | None
    #: The most tokens of prompt plus answer.
    max_model_len: int
    permission: list[Any] = []
    object: Literal["model"] = "model"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"


@dataclass(frozen=True, slots=True)
class CardMaker:
    """Creates model cards."""

    base_name: str
    max_context: int
    #: When the base model's service began.
    created_s: int

    def of_base(self) -> ModelCard:
        return ModelCard(self.base_name, self.created_s, OWNER, self.base_name, None, self.max_context)

    def of_adapter(self, adapter: AdapterVersion, name: str) -> ModelCard:
        """``name`` is the caller's name for the adapter."""
        base_name = self.base_name
        return ModelCard(name, int(adapter.created_s), adapter.tenant, base_name, base_name, self.max_context)
