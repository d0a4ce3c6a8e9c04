import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from punica_serve.errors import InvalidRequest, ModelRejected
from punica_serve.text.tokenizer import Tokenizer


@pytest.fixture
def folder(tmp_path: Path, sentencepiece: Tokenizer) -> Path:
    sentencepiece._backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write_config(folder: Path, **config: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_folder_needs_no_more_than_tokenizer_json(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode("hi é🦙")
    assert tokenizer.decode(ids) == "hi é🦙"
    assert tokenizer.vocab_size == max(tokenizer._backend.get_vocab().values()) + 1
    assert tokenizer.special_ids == {1, 2}
    assert tokenizer.decode([1, *ids, 2]) == "hi é🦙"
    assert tokenizer.decode([1], skip_special_tokens=False) == "<s>"
    with pytest.raises(InvalidRequest, match="no chat template"):
        tokenizer.render_chat([])


@pytest.mark.parametrize("family", ["sentencepiece", "byte_level"])
@pytest.mark.parametrize("text", ["hi é🦙", "", "hi é🦙 " * 2000])
def test_one_text_is_encoded_and_decoded_as_the_library_does(
    family: str, text: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(family)
    for special in (True, False):
        ids = tokenizer.encode(text, add_special_tokens=special)
        assert ids == tokenizer._backend.encode(text, add_special_tokens=special).ids
        assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)


@pytest.mark.parametrize("what", ["encode", "decode"])
def test_a_long_text_stops_no_other_thread(byte_level: Tokenizer, what: str) -> None:
    text = "hi " * 200_000
    work = partial(byte_level.encode, text) if what == "encode" else partial(byte_level.decode, byte_level.encode(text))
    thread = threading.Thread(target=work)
    thread.start()
    num_turns = 0
    while thread.is_alive():
        num_turns += 1
    assert num_turns > 1_000, "one or two, were the interpreter held"


def test_a_truncating_file_does_not_truncate_prompts(folder: Path, sentencepiece: Tokenizer) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    document["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    assert len(Tokenizer.from_folder(folder).encode("hi hi hi hi")) > 2


@pytest.mark.parametrize("content", [None, b"", b"{}", b"not json", b"\xff"])
def test_a_missing_or_broken_tokenizer_is_rejected_by_its_path(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelRejected, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", "[" * 100_000])
def test_a_broken_tokenizer_config_is_rejected(folder: Path, content: str) -> None:
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelRejected, match=r"tokenizer_config\.json"):
        Tokenizer.from_folder(folder)


TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"


@pytest.mark.parametrize(
    "template", [TEMPLATE, [{"name": "tool_use", "template": "no"}, {"name": "default", "template": TEMPLATE}]]
)
def test_a_chat_template_sees_the_special_tokens(folder: Path, template: object) -> None:
    write_config(folder, bos_token="<s>", eos_token={"content": "</s>"}, chat_template=template)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "<s>user: hi</s>"


def test_a_template_file_wins_over_the_config(folder: Path) -> None:
    write_config(folder, chat_template="config")
    (folder / "chat_template.jinja").write_text("file{% if add_generation_prompt %} go{% endif %}")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.render_chat([]) == "file go"
    assert tokenizer.render_chat([], add_generation_prompt=False) == "file"
