import re

import pytest

from punica_serve.adapters.regex_cost import MAX_WAYS, num_ways

LAYERS = "|".join(map(str, range(80)))
LINEAR = "q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj"


@pytest.mark.parametrize(
    "regex",
    [
        r"model\.layers\.0\.self_attn\.q_proj",
        r".*\.(q_proj|v_proj)",
        rf".*layers\.({LAYERS})\.(self_attn|mlp)\.({LINEAR})",
        rf"(.*\.)?(.*\.layers\.\d+\..*({LINEAR}))$",
        rf"^(?!.*visual)(?=.*layers).*\.(?:{LINEAR})$",
        r".*model.*layers.*self_attn.*_proj",
        r"model\.layers\.(?:[0-9]|1[0-9]|2[0-3])\.(self_attn|mlp)\.[a-z_]+",
        r"(?:model|layers|4|_)*q_proj",
        r"(?P<where>.*)\.self_attn\.[qkv]_proj",
        r"(.*)(\.mlp)?(\..*)?",
    ],
)
def test_what_users_write_is_cheap(regex: str) -> None:
    assert num_ways(regex) <= MAX_WAYS


@pytest.mark.parametrize(
    "regex",
    [
        r"(a+)+b",
        r"(.*)*",
        r"(a|aa)*b",
        r"(?:model|m)(?:.|..)*x",
        r"(.|.a?)*x",
        r"(?:a?){40}b",
        "a?" * 30 + "a" * 30,
        "(?:..|.)" * 25,
        ".*" * 6 + "x",
        r"(?=(a+)+b)",
        r"((((.?)?)?)+)+x",
        r"(?i)[a-z]*",
        r"(?i:[a-z])*",
        r"(a)?(?(1)(b+)+|c)",
    ],
)
def test_what_may_take_long_is_known(regex: str) -> None:
    re.compile(regex)
    assert num_ways(regex) > MAX_WAYS


def test_raises_what_compiling_raises() -> None:
    with pytest.raises(re.error):
        num_ways("(")
