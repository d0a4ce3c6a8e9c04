import pytest

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import ConfigError
from punica_serve.shapes import SHAPE_NAMES, shape_folder, shape_of


def test_shapes_have_the_published_numbers_of_parameters() -> None:
    assert _num_parameters(shape_of("llama-2-7b")) == 6_738_415_616
    assert _num_parameters(shape_of("llama-2-13b")) == 13_015_864_320


def _num_parameters(model: ModelConfig) -> int:
    """Norms, embedding and output layer included."""
    layer = sum(out * inputs for out, inputs in model.linear_shapes.values()) + 2 * model.hidden_size
    return model.num_hidden_layers * layer + model.hidden_size + 2 * model.vocab_size * model.hidden_size


@pytest.mark.parametrize("name", SHAPE_NAMES)
def test_a_shape_is_called_what_its_folder_is(name: str) -> None:
    assert shape_of(name).name == name == shape_folder(name).name


def test_an_unknown_shape_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'7b' is unknown; there are llama-2-7b, llama-2-13b, 1b"):
        shape_of("7b")
