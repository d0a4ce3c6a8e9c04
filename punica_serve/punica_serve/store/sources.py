"""Fetches adapters by URI (file, s3, hf, https). Only an adapter's files are read, within limits."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.config.store_section import StoreConfig
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.store.adapter_files import ADAPTER_FILES
from punica_serve.store.credentials import Credentials
from punica_serve.store.failure_log import FailureLog
from punica_serve.store.filesystems import store_errors
from punica_serve.store.object_source import ObjectSource
from punica_serve.store.source_errors import source_refusals
from punica_serve.store.source_policy import SourcePolicy
from punica_serve.store.threads import StoreThreads
from punica_serve.store.web_source import WebSource

log = logging.getLogger(__name__)

#: Concurrent fetches.
_NUM_FETCHES = 16
#: Checks the configuration in a folder, whose weights are not there yet. Blocks. Raises AdapterRejected.
CheckConfig = Callable[[Path], None]
_WHAT = "fetching the adapter from its source"


class Sources:
    """Fetches adapters for callers, within their permissions."""

    def __init__(self, config: StoreConfig, check_config: CheckConfig) -> None:
        self._config = config
        self._check_config = check_config
        self._credentials = Credentials(config.sources.credentials)
        self._failures = FailureLog(log)
        self._free = asyncio.Semaphore(_NUM_FETCHES)
        self._threads = StoreThreads(_NUM_FETCHES, _WHAT)

    async def fetch(self, uri: str, folder: Path, *, is_admin: bool) -> None:
        """Writes the adapter's files into an empty ``folder``, which the caller removes in any case.

        The configuration comes first and is checked at once, so weights that it rules out are never asked for.

        Raises InvalidRequest and Forbidden for the URI; AdapterRejected for such a configuration, and when no adapter
        can be read and a retry would not help; TooLarge; StoreUnavailable when the source is down or slow, or the disk
        is full.
        """
        policy = SourcePolicy(self._config.sources, is_admin)
        plain = policy.admit(uri)
        stop = Event()
        deadline = asyncio.timeout(self._config.sources.timeout_s)
        try:
            async with deadline, self._free:
                if plain.startswith("http"):
                    await self._fetch_web(plain, folder, policy)
                else:
                    fetch = partial(self._fetch_objects, plain, folder, policy, stop)
                    await self._threads.call(fetch, timeout_s=self._config.sources.timeout_s)
        except TimeoutError as error:
            raise StoreUnavailable(f"{_WHAT} took longer than {self._config.sources.timeout_s:g} s") from error
        finally:
            stop.set()

    async def _fetch_web(self, uri: str, folder: Path, policy: SourcePolicy) -> None:
        with source_refusals(uri):
            headers = self._credentials.headers(uri)
        with store_errors(_WHAT, self._failures, place="the source"):
            async with WebSource.open(uri, headers, policy, self._threads) as source:
                for name in ADAPTER_FILES:
                    if not await source.fetch(folder / name, self._config.max_adapter_bytes):
                        _check_missing(name, uri)
                    if name == CONFIG_NAME:
                        check = partial(self._check_config, folder)
                        await self._threads.call(check, timeout_s=self._config.sources.timeout_s)

    def _fetch_objects(self, uri: str, folder: Path, policy: SourcePolicy, stop: Event) -> None:
        with store_errors(_WHAT, self._failures, place="the source"):
            source = ObjectSource(uri, self._credentials.filesystems(uri), policy, stop)
            for name in ADAPTER_FILES:
                if not source.fetch(folder / name, self._config.max_adapter_bytes):
                    _check_missing(name, uri)
                if name == CONFIG_NAME:
                    self._check_config(folder)


def _check_missing(name: str, uri: str) -> None:
    if name in (CONFIG_NAME, WEIGHTS_NAME):
        message = (
            f"there is no {name} in {uri}, or the cluster may not see it; register the URI of a folder that holds "
            f"{CONFIG_NAME} and {WEIGHTS_NAME}, and convert split or pickled weights to it first"
        )
        raise AdapterRejected(message, param="uri")
