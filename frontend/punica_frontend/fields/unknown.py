"""Finds fields of a body that ask for unsupported features. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from punica_frontend.api.field_names import is_plain, nearest, shown
from punica_frontend.fields.lenient_body import Extras, LenientBody
from punica_frontend.fields.neutral_values import MAX_MEMBERS, asks_for_nothing, is_nothing


@dataclass(frozen=True, slots=True)
class UnknownField:
    """An unknown field of one object."""

    name: str
    extras: Extras

    @property
    def param(self) -> str:
        """The field's path, such as messages.0.tool_calls, or the path of the member that names an adapter."""
        member = self._adapter_member
        return f"{self.extras.path}{shown(self.name)}" + (f".{shown(member)}" if member is not None else "")

    @property
    def label(self) -> str | None:
        """The path without indices, which is the same for all messages; None for a name that no API uses."""
        place = "".join(f"{part}." for part in self.extras.path.split(".") if part and not part.isdigit())
        return f"{place}{self.name}" if is_plain(self.name) else None

    @property
    def names_an_adapter(self) -> bool:
        """Itself, or as the object that a client should have unpacked: extra_body, options."""
        return self._is_adapter_name or self._adapter_member is not None

    @property
    def _is_adapter_name(self) -> bool:
        return self.extras.lists.names_an_adapter(self.name)

    @property
    def _adapter_member(self) -> str | None:
        """The member of an object that names an adapter."""
        value = self.extras.fields[self.name]
        if self._is_adapter_name or not isinstance(value, dict):
            return None
        members = (member for member, each in islice(value.items(), MAX_MEMBERS) if not is_nothing(each))
        return next(filter(self.extras.lists.names_an_adapter, members), None)

    @property
    def advice(self) -> str:
        """A hint for the sender."""
        lists, path = self.extras.lists, self.extras.path
        if self.names_an_adapter:
            return f"give the adapter's name as `{lists.adapter_field}`"
        if self.name in lists.instead:
            return lists.instead[self.name]
        near = nearest(self.name, self.extras.known)  # hints do nothing, so none is worth a correction
        return f"did you mean `{path}{near}`? Otherwise leave it out" if near else "leave it out"


def unknown_fields(body: LenientBody) -> Iterator[UnknownField]:
    """Yields unknown fields in document order, except those that are ignored or ask for nothing."""
    for extras in body.extras():
        lists = extras.lists
        for name, value in extras.fields.items():
            # Most are null: clients send whole messages of earlier answers back.
            if value is not None and name not in lists.hints and not asks_for_nothing(name, value, lists.neutral):
                yield UnknownField(name, extras)
