"""Requests whose adapters go on to the device while they are read, through a whole engine."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cold_requests import NUM_LAYERS, cold_adapters, cold_request, run_requests
from packed_loads import settle
from punica_serve.config.engine_section import ColdStart, EngineConfig
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.engine.adapters.step_arrivals import StepArrivals
from punica_serve.engine.engine import Engine
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S

_SETTINGS: dict[str, Any] = {"dtype": "float32", "page_size": 4, "num_kv_pages": 256, "num_lora_pages": 64}


@pytest.mark.parametrize("mode", ["wait", "layerwise"])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_requests_say_from_packed_files_what_they_say_from_folders(
    make_llama: Callable[..., Path], tmp_path: Path, mode: ColdStart, is_damaged: bool
) -> None:
    folder = make_llama(num_hidden_layers=NUM_LAYERS)
    refs, cache = cold_adapters(folder, tmp_path, 2), PackedCache(tmp_path / "cache", 1 << 30)
    requests = [cold_request(f"{number}", ref) for number, ref in enumerate(refs)]
    said = []
    for packed_cache in (None, cache, cache):
        engine = Engine(EngineConfig(model=folder, **_SETTINGS, cold_start=mode), "cpu", packed_cache=packed_cache)
        said.append(run_requests(engine, *requests))
        if packed_cache is not None:
            settle(engine._loader)
        engine.close()
        if is_damaged:
            for file in (cache.folder / "packed").glob("*/*"):
                file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert said[0] == said[1] == said[2] and not said[0][1]
    assert len(list((cache.folder / "packed").glob("*/*"))) == 2


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.timeout(600)])])
def test_a_step_that_goes_by_layers_waits_on_the_device_for_the_last_copies(
    make_llama: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """And for no thread: a wait for the copies on the host would hold until the step was launched."""
    folder = make_llama(num_hidden_layers=NUM_LAYERS)
    refs, cache = cold_adapters(folder, tmp_path, 1), PackedCache(tmp_path / "cache", 1 << 30)
    request, joined = cold_request("cold", refs[0]), Event()
    join, wait = StepArrivals.join, PageStream.wait

    def note(arrivals: StepArrivals, digest: str) -> None:
        join(arrivals, digest)
        joined.set()

    def held(stream: PageStream) -> None:
        assert joined.wait(DEADLINE_S)
        wait(stream)

    config = EngineConfig(model=folder, **_SETTINGS, max_batch_size=4, prefill_budget_tokens=16)
    said = []
    for _ in range(2):
        engine = Engine(config, device, packed_cache=cache)
        said.append(run_requests(engine, request))
        settle(engine._loader)
        engine.close()
        monkeypatch.setattr(PageStream, "wait", held)
        monkeypatch.setattr(StepArrivals, "join", note)
    assert joined.is_set() and said[0] == said[1] and not said[0][1]
