"""The real worker process over a stub of the engine, which needs no torch; ``--device`` says how it misbehaves.

"idle": not at all. "slow-start": takes a minute to load. "late-start": the same, from the moment at which the process
is told to end. "lazy": never steps, though it could. "broken-step": raises in its first step. "stuck-step": hangs in
its first step, deaf to signals. "stuck-read": raises in its first step too, while a read of an adapter hangs.
"without NAME": imports a module that is not installed.
"""

import importlib
import os
import signal
import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

from punica_runner import worker
from punica_serve.paging.prefix_hints import PrefixHints


class Engine:
    num_kv_pages = num_free_kv_pages = 4
    resident_adapters = ranks = ()
    num_shared_kv_pages = num_known_kv_pages = 0
    prefix_tokens = (0, 0)
    prefix_caching = None
    kv_window = None
    num_lora_pages = {"qkv": 8}  # noqa: RUF012

    prefix_hints = PrefixHints()
    host_cache = SimpleNamespace(take_changes=lambda: ((), ()))

    def __init__(self, config: Any, device: str, fetch: Any, packed_cache: Any, **group: Any) -> None:
        self.behaviour = device
        self.has_runnable = device == "lazy"
        self.device = SimpleNamespace(type="cpu")
        if device == "stuck-step":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # like a call into C that does not return
        if device == "stuck-read":
            threading.Thread(target=time.sleep, args=(60,)).start()  # the interpreter's own shutdown waits for it
        if device.startswith("without "):
            name = device.removeprefix("without ")
            sys.modules[name] = None  # type: ignore[assignment]  # as if it were not installed
            importlib.import_module(name)
        if device == "late-start":
            _wait_for_signal()
        if device in ("slow-start", "late-start"):
            time.sleep(60)

    def step(self) -> Any:
        if self.behaviour in ("broken-step", "stuck-read"):
            raise ZeroDivisionError("a bad step")
        if self.behaviour == "stuck-step":
            time.sleep(60)
        nothing: dict[str, tuple[()]] = {"tokens": (), "finished": (), "failures": (), "preempted": ()}
        return SimpleNamespace(has_run=False, batch_size=0, num_adapters=0, **nothing)

    def wait_for_requests(self) -> bool:
        return False

    def wait(self, timeout_s: float) -> None:
        time.sleep(0.01)

    def wake(self) -> None:
        pass


def _wait_for_signal() -> None:
    """Until another thread sends one to this process, while this one waits for the GIL, and so looks for it later."""
    sent: list[int] = []
    kill = os.kill

    def noted(pid: int, number: int) -> None:
        sent.append(number)
        kill(pid, number)

    os.kill = noted
    while not sent:
        pass


stub: Any = ModuleType("punica_serve.engine.engine")
stub.Engine = Engine
sys.modules["punica_serve.engine.engine"] = stub
worker.main()
