"""Bodies that keep unknown fields: some are ignored, others refused."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from punica_frontend.api.schemas import Body
from punica_frontend.fields.lists import FieldLists
from punica_frontend.fields.neutral_values import NOTHING_SCHEMA, is_nothing


@dataclass(frozen=True, slots=True)
class Extras:
    """The unknown fields of one object."""

    #: The object's place, as a prefix of its fields' names: "", "messages.0.", "stream_options.".
    path: str
    fields: Mapping[str, Any]
    lists: FieldLists
    #: The names of its known fields.
    known: Collection[str]


class LenientBody(Body):
    """A body that drops fields whose values ask for nothing, and keeps unknown fields for ``extras``."""

    model_config = ConfigDict(extra="allow")

    lists: ClassVar[FieldLists] = FieldLists()
    #: Fields for which false or "" differs from leaving them out. Required fields always do.
    keeps_empty: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def can_be_left_out(cls, name: str) -> bool:
        return not cls.model_fields[name].is_required() and name not in cls.keeps_empty

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nothing(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        nothing = {
            name
            for name in cls.model_fields
            if name in document and is_nothing(document[name]) and cls.can_be_left_out(name)
        }
        return {name: value for name, value in document.items() if name not in nothing} if nothing else document

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = handler(core)
        schema = handler.resolve_ref_schema(reference)
        # In a list, because the handler makes references only of inner schemas.
        nothing = handler(core_schema.list_schema(NOTHING_SCHEMA))["items"]
        for name, field in schema["properties"].items():
            if cls.can_be_left_out(name):
                field["anyOf"].append(nothing)
        for name, reason in cls.lists.hints.items():
            schema["properties"].setdefault(name, {"description": f"Ignored: {reason}."})
        schema["additionalProperties"] = nothing
        return reference

    def extras(self, path: str = "") -> Iterator[Extras]:
        """Yields the unknown fields of this object at ``path``, then those of the objects in it."""
        if self.model_extra:
            yield Extras(path, self.model_extra, self.lists, type(self).model_fields)
        for name, value in self.__dict__.items():
            # Checked first because it is the most common case; testing for a model takes a microsecond.
            if value is None or isinstance(value, str | int | float):
                continue
            if isinstance(value, LenientBody):
                yield from value.extras(f"{path}{name}.")
            elif type(value) is list and value and isinstance(value[0], LenientBody):
                for index, item in enumerate(value):
                    yield from item.extras(f"{path}{name}.{index}.")
