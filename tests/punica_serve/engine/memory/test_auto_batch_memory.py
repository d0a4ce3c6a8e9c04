from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory.auto_batch_memory import largest_that_fits

CONFIG = EngineConfig.model_validate({"model": "shape:llama-2-7b", "load_format": "dummy", "max_batch_size": 256})


def test_a_cpu_keeps_the_size_that_the_profile_allows() -> None:
    assert largest_that_fits(CONFIG, ["cpu"]) == 256
    assert largest_that_fits(CONFIG, ["cpu", "1/cpu"]) == 256
