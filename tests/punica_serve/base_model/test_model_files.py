import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from punica_serve.base_model.model_files import convert, read_object
from punica_serve.errors import ModelRejected


class Shape(msgspec.Struct):
    size: int
    name: str = ""


def test_reads_what_python_writes(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"size": 3, "scale": NaN}')
    document = read_object(tmp_path / "f.json")
    assert document["size"] == 3 and math.isnan(document["scale"])
    assert convert(document, Shape, tmp_path / "f.json") == Shape(3), "other fields are ignored"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read: No such file"),
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON: maximum recursion depth"),
        (b"[]", "must hold a JSON object"),
    ],
)
def test_a_file_that_is_no_object_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "f.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelRejected, match=rf"f\.json {message}") as caught:
        read_object(path)
    assert caught.value.param == "f.json"


@pytest.mark.parametrize(
    ("document", "within", "message", "param"),
    [
        ({"size": "3"}, "", "f.json: `size` is not valid: Expected `int`, got `str`", "size"),
        ({}, "", "f.json: `size` is missing", "size"),
        ({"size": "3"}, "outer", "f.json: `outer.size` is not valid", "outer.size"),
        ({}, "outer", "f.json: `outer.size` is missing", "outer.size"),
        ({"size": "\ud800"}, "", "f.json holds text that is not Unicode", "f.json"),
    ],
)
def test_a_wrong_field_is_named(document: dict[str, Any], within: str, message: str, param: str) -> None:
    with pytest.raises(ModelRejected, match=message) as caught:
        convert(document, Shape, Path("f.json"), within=within)
    assert caught.value.param == param
