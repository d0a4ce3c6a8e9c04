"""The shapes that benchmarks are run at."""

from pathlib import Path

import pytest

from punica_serve.bench.shapes import SHAPES, shape_of, write_shape
from punica_serve.errors import ConfigError
from punica_serve.model_config import ModelConfig, read_model_config


@pytest.mark.parametrize("name", SHAPES)
def test_a_written_shape_reads_back_as_itself(name: str, tmp_path: Path) -> None:
    assert read_model_config(write_shape(SHAPES[name], tmp_path / name)) == SHAPES[name]


def test_shapes_have_the_published_numbers_of_parameters() -> None:
    assert _num_parameters(SHAPES["llama-2-7b"]) == 6_738_415_616
    assert _num_parameters(SHAPES["llama-2-13b"]) == 13_015_864_320


def _num_parameters(model: ModelConfig) -> int:
    """Norms, embedding and output layer included."""
    layer = sum(out * inputs for out, inputs in model.linear_shapes.values()) + 2 * model.hidden_size
    return model.num_hidden_layers * layer + model.hidden_size + 2 * model.vocab_size * model.hidden_size


def test_an_unknown_shape_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'7b' is unknown; there are llama-2-7b, llama-2-13b, 1b"):
        shape_of("7b")
