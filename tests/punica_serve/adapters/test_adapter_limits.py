import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from punica_serve.adapters.adapter_limits import limit_settings

Write = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Write:
    def write(name: str, **config: Any) -> Path:
        (tmp_path / name).mkdir()
        document = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "target_modules": ["q_proj"], **config}
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(document))
        return tmp_path / name

    return write


def test_usual_adapters_need_no_settings(folder: Write, tmp_path: Path) -> None:
    folders = [folder("a", r=128), folder("b", r=8, target_modules="all-linear"), tmp_path / "nowhere"]
    assert limit_settings(folders) == {}
    assert limit_settings([]) == {}


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({"r": 200}, {"max_lora_rank": 200}),
        ({"r": 8, "rank_pattern": {"q_proj": 129}}, {"max_lora_rank": 129}),
        ({"r": 300}, {"max_lora_rank": 256}),
        ({"target_modules": ["q_proj", "lm_head"]}, {"lora_vocabulary": True}),
        ({"target_modules": r".*(q_proj|embed_tokens)"}, {"lora_vocabulary": True}),
    ],
)
def test_others_get_the_settings_that_let_them_in(
    folder: Write, config: dict[str, Any], settings: dict[str, int | bool]
) -> None:
    assert limit_settings([folder("usual"), folder("other", **config)]) == settings
