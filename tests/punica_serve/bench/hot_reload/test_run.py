from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.hot_reload.run import HotReloadSettings, run
from punica_serve.errors import ConfigError


def test_a_config_without_the_adapters_is_refused_before_a_cluster_is_started(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("engine: {model: 'demo:model'}\nadapters: {roman: 'demo:adapters/roman'}\n")
    settings = HotReloadSettings(config, rate_per_s=1.0, max_in_flight=1, num_reloads=1, reload_every_s=1.0)
    message = r"c\.yaml lacks the demo's adapters english, french, binary; use configs/demo\.yaml, which has all"
    with Progress() as progress, pytest.raises(ConfigError, match=message):
        run(settings, progress)
