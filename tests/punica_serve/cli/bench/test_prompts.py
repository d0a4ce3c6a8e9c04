from typing import get_args

from punica_serve.cli.bench.prompts import AttentionOption
from punica_serve.config.engine_section import AttentionBackend


def test_the_options_are_the_values_of_the_setting() -> None:
    assert list(AttentionOption) == list(get_args(AttentionBackend))
