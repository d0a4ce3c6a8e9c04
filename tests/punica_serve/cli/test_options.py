from collections.abc import Callable

import pytest

from punica_serve.cli.options import check_key
from punica_serve.errors import ConfigError

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    "command",
    [
        ("adapters", "list", "--url"),
        ("bench", "just-in-time", "--url"),
        ("bench", "serving", "--url"),
        ("bench", "serving", "--peer-files"),
    ],
)
def test_bytes_that_are_no_text_are_refused(cli: Cli, command: tuple[str, ...]) -> None:
    exit_code, _, stderr = cli(*command, "\udcff")
    assert exit_code == 2 and "an argument is not valid UTF-8; check how it was typed or copied" in stderr


@pytest.mark.parametrize("key", [None, "", "ps-10215dda90a4-secret"])
def test_what_a_header_can_carry_is_taken_as_it_is(key: str | None) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["ps-1\n", "ps-\u00e9", "\0"])
def test_what_it_cannot_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^the API key \(`--key`, PUNICA_API_KEY\) holds a character") as caught:
        check_key(key)
    assert caught.value.param == "key" and key not in caught.value.message


@pytest.mark.parametrize(
    "command",
    [
        ["generate", "\udcff"],
        ["generate", "42", "--lora-id", "\udcff"],
        ["generate", "42", "--stop", "x", "--stop", "\udcff"],
        ["adapters", "show", "\udcff"],
        ["adapters", "add", "\udcff", "."],
        ["adapters", "add", "mine", "hf://\udcff/x"],
    ],
)
def test_bytes_that_are_no_text_are_told_before_anything_is_sent(cli: Cli, command: list[str]) -> None:
    told = "punica-serve: an argument is not valid UTF-8; check how it was typed or copied\n"
    assert cli(*command) == (2, "", told)
