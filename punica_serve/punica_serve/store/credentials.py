"""Options, mainly credentials, that the config has for sources by prefix."""

from collections.abc import Mapping
from typing import Any

from punica_serve.store.filesystems import FileSystems
from punica_serve.store.secrets import resolved
from punica_serve.store.source_policy import begins_with

#: Hugging Face's hub. Without explicit options its client would use the operator's own token for everybody.
_HUB = "hf://"
_ANONYMOUS = {"token": False}


class Credentials:
    """Options by prefix; the longest matching prefix wins."""

    def __init__(self, by_prefix: Mapping[str, Mapping[str, Any]]) -> None:
        self._by_prefix = {_HUB: {}, **by_prefix}
        self._filesystems = {prefix: FileSystems(options) for prefix, options in self._all_options().items()}
        self._others = FileSystems({})

    def filesystems(self, uri: str) -> FileSystems:
        prefix = self._prefix(uri)
        return self._others if prefix is None else self._filesystems[prefix]

    def headers(self, uri: str) -> dict[str, str]:
        """Headers for a web server. Raises ConfigError when a secret is missing."""
        prefix = self._prefix(uri)
        return {} if prefix is None else resolved(self._by_prefix[prefix]).get("headers", {})

    def _prefix(self, uri: str) -> str | None:
        return max((prefix for prefix in self._by_prefix if begins_with(uri, prefix)), key=len, default=None)

    def _all_options(self) -> dict[str, Mapping[str, Any]]:
        return {
            prefix: {**(_ANONYMOUS if prefix.startswith(_HUB) else {}), **options}
            for prefix, options in self._by_prefix.items()
        }
