"""An adapter whose download stops half way until a test lets it go on, and workers that pack it as it comes."""

from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from file_server import FileServer
from host_downloads import HostDownloads, weights_path
from packed_worker import Worker, equal
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.load_trace import LoadTrace
from punica_serve.protocol import AdapterRef


@dataclass
class IncomingDownload:
    ref: AdapterRef
    #: The same adapter, at its store.
    remote: AdapterRef
    model: ModelConfig
    host: HostDownloads
    server: FileServer

    @cached_property
    def worker(self) -> Worker:
        return self.make_worker()

    @property
    def folder(self) -> Path:
        """Where the adapter is once it has come."""
        return self.host.folder / self.ref.digest

    def make_worker(self) -> Worker:
        return Worker(self.host.folder, self.model)

    def fetch(self) -> "Future[Path]":
        return self.host.fetch(self.remote)

    def follow(self, trace: LoadTrace | None = None) -> "Future[Any]":
        """Fetches it, and has the worker pack what comes."""
        return follow(self.worker, self.remote, self.fetch(), trace)

    def go_on(self) -> None:
        self.server.may_go_on.set()

    def cut_half_way(self) -> None:
        """The store's connections end there."""
        self.server.cut_from[weights_path(self.ref)] = self.ref.num_bytes // 2

    def is_whole(self, copy: HostCopy) -> bool:
        """Whether the pages are those of an adapter that is read from its folder."""
        return equal(copy, Worker(self.host.folder / "other", self.model).load(self.ref))


def follow(worker: Worker, remote: AdapterRef, fetch: "Future[Path]", trace: LoadTrace | None = None) -> "Future[Any]":
    """Has a worker pack what a fetch downloads; its result is a copy, or the folder if that must be read."""
    return worker.reader.follow(remote, fetch, trace or LoadTrace(remote.digest), lambda: None)
