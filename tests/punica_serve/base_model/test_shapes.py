import pytest
import torch

from punica_serve.errors import ConfigError
from punica_serve.models.model_weights import weights_num_bytes
from punica_serve.shapes import SHAPE_NAMES, shape_folder, shape_of


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("mistral-7b", 7_248_023_552),
        ("qwen-2.5-7b", 7_615_616_512),
        ("qwen-2.5-32b", 32_763_876_352),
        ("qwen-3-8b", 8_190_735_360),
    ],
)
def test_shapes_have_the_published_numbers_of_parameters(name: str, num_parameters: int) -> None:
    assert weights_num_bytes(shape_of(name), torch.bfloat16) == 2 * num_parameters


@pytest.mark.parametrize("name", SHAPE_NAMES)
def test_a_shape_is_called_what_its_folder_is(name: str) -> None:
    assert shape_of(name).name == name == shape_folder(name).name


def test_an_unknown_shape_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'7b' is unknown; there are llama-2-7b, .*, 1b"):
        shape_of("7b")
