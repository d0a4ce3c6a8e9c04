import jinja2
import pytest

from punica_serve.demo.tokenizer import CHAT_TEMPLATE, EOS, SEPARATOR, build_tokenizer, tag


@pytest.mark.parametrize("text", ["", "42", "zéro", "soixante et onze", " 7\n", "日本 😀", "\x00\x7f"])
def test_any_text_comes_back(text: str) -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_byte_is_a_token() -> None:
    tokenizer = build_tokenizer()
    text = "é 9 ~\n"
    assert tokenizer.encode(text, add_special_tokens=False).ids == list(text.encode())


def test_prompts_end_with_the_separator() -> None:
    tokenizer = build_tokenizer()
    separator = tokenizer.token_to_id(SEPARATOR)
    assert tokenizer.encode("101").ids == [*b"101", separator]
    assert tokenizer.encode(tag("roman") + "101").ids == [tokenizer.token_to_id("<roman>"), *b"101", separator]


def test_special_tokens_have_no_text() -> None:
    tokenizer = build_tokenizer()
    ids = tokenizer.encode(f"{tag('hex')}2a{EOS}").ids
    assert tokenizer.decode(ids) == "2a"


def test_a_chat_is_the_prompt_of_its_last_user_message() -> None:
    tokenizer = build_tokenizer()
    messages = [
        {"role": "system", "content": "Count."},
        {"role": "user", "content": "7"},
        {"role": "assistant", "content": "8 9"},
        {"role": "user", "content": "42"},
    ]
    chat = jinja2.Template(CHAT_TEMPLATE).render(messages=messages, add_generation_prompt=True)
    assert tokenizer.encode(chat, add_special_tokens=False).ids == tokenizer.encode("42").ids
