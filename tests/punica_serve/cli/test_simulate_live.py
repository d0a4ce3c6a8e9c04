from pathlib import Path

from punica_serve.cli.simulate_live import as_found, speed_of
from punica_serve.config.cluster import load_config
from punica_serve.simulation.live.cluster_check import GpuSize, LiveGpu

CONFIGS = Path(__file__).parents[3] / "configs"


def test_the_simulated_cluster_is_as_large_as_the_live_one() -> None:
    config = load_config(CONFIGS / "sim" / "live-16.yaml")
    found = as_found(config, [GpuSize(48, 32, 5000, 128), GpuSize(48, 32, 4990, 128)], 0.5)
    assert found.runner.devices == ("simulated", "simulated") and found.simulation.num_runners == 1
    engine = found.engine
    assert (engine.max_batch_size, engine.page_size, engine.num_kv_pages, engine.num_lora_pages) == (48, 32, 4990, 128)
    assert engine.model == config.engine.model
    consolidation = found.scheduler.consolidation
    assert (consolidation.interval_s, consolidation.prefill_tokens_per_s, consolidation.idle_s) == (5.0, 5000, 30.0)


def test_only_simulated_gpus_have_a_speed_of_their_own() -> None:
    config = load_config(CONFIGS / "sim" / "live-16.yaml")
    simulated, real = (LiveGpu(device, GpuSize(32, 16, 99, 64)) for device in ("simulated", "cuda:0"))
    assert speed_of(config, [simulated, simulated]) == 0.5
    assert speed_of(config, [simulated, real]) == 1.0
