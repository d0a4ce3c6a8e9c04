import pytest

from punica_frontend.api.field_names import nearest, shown
from punica_frontend.fields.lists import FieldLists


def test_only_plain_characters_are_shown() -> None:
    assert shown("top_p") == "top_p"
    assert shown("a\r\nSet-Cookie: b\ud800é") == "a??Set-Cookie??b??"
    assert shown("x" * 100) == "x" * 64 + "..."


def test_the_nearest_name() -> None:
    names = ("max_tokens", "temperature", "top_p")
    assert nearest("temprature", names) == "temperature" and nearest("maxTokens", names) == "max_tokens"
    assert nearest("guided_json", names) is None
    assert nearest("temperature" * 100_000, names) is None  # comparing it would take minutes
    assert nearest("temprature", ("temperature" * 100_000,)) is None


@pytest.mark.parametrize(
    "name", ["lora_path", "LoRA", "use_lora", "loraName", "merged_adapters", "activeAdapter", "peft"]
)
def test_names_that_mean_an_adapter(name: str) -> None:
    assert FieldLists().names_an_adapter(name)


@pytest.mark.parametrize("name", ["exploration", "top_p", "tools", "made_up"])
def test_names_that_do_not(name: str) -> None:
    assert not FieldLists().names_an_adapter(name)
