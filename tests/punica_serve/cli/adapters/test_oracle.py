"""The probe where the base also sees images, with adapters of its text model alone and of all of it."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from punica_serve.adapters.folder import WEIGHTS_NAME, read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.cli.adapters.parity import TOLERANCE, compare_base, engine_answers, probe
from punica_serve.config.engine_section import EngineConfig
from punica_serve.errors import ConfigError
from wrapped_models import WRAPPERS, save_wrapped_model

#: A name within the part for images too, where it has another size.
TARGETS = ["q_proj", "down_proj"]


@dataclass(frozen=True)
class Base:
    config: EngineConfig
    #: Trained on all of the model.
    trained: Path


@pytest.fixture(scope="module", params=WRAPPERS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("base")
    model = save_wrapped_model(folder, request.param)
    trained = get_peft_model(model, LoraConfig(r=4, lora_alpha=64, target_modules=TARGETS, init_lora_weights=False))
    trained.save_pretrained(adapter := tmp_path_factory.mktemp("trained"))
    return Base(EngineConfig(model=folder, num_kv_pages=64, num_lora_pages=16), adapter)


def check(base: Base, adapter: Path) -> None:
    rows = probe(base.config, read_adapter(adapter, read_model_config(base.config.model)))
    assert max(row.difference for row in rows) < TOLERANCE / 10
    assert min(row.effect or 0 for row in rows) > 100 * TOLERANCE


def test_its_text_is_compared_with_transformers(base: Base) -> None:
    rows = compare_base(engine_answers(base.config, None), base.config.model)
    assert max(row.difference for row in rows) < TOLERANCE / 10


def test_an_adapter_that_was_trained_on_all_of_it_is_compared(base: Base) -> None:
    check(base, base.trained)


def test_so_is_one_of_the_text_model_alone(base: Base, tmp_path: Path) -> None:
    check(base, write_random_adapter(tmp_path, read_model_config(base.config.model), rank=8, seed=1))


def test_one_that_this_transformers_would_not_apply_is_refused(base: Base, tmp_path: Path) -> None:
    for file in base.trained.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / WEIGHTS_NAME
    tensors = {
        name.replace("model.language_model", "language_model.model"): t for name, t in load_file(weights).items()
    }
    save_file(tensors, weights)
    with pytest.raises(ConfigError, match=r"names its tensors `language_model\.model\.\.\.`, as older versions"):
        check(base, tmp_path)
