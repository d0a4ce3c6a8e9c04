"""Paths of one adapter's routes. Names may contain a slash, and actions follow them."""

from starlette.convertors import Convertor, register_url_convertor

from punica_serve.registry.names import ACTIONS


class _AdapterName(Convertor[str]):
    """Matches an adapter's name or `tenant/name`, but no path that ends in an action."""

    regex = rf"(?!.*/(?:{'|'.join(ACTIONS)})$).*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("adapter", _AdapterName())

ADAPTER = "/v1/adapters/{name:adapter}"
