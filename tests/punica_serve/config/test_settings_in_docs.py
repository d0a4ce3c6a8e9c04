"""Every setting of a config file has a place in docs/*.md, in code: `section.key`, or a line of an example."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from punica_serve.config.cluster import ClusterConfig

_DOCS = Path(__file__).parents[3] / "docs"
_CODE = re.compile(r"```.*?```|`[^`]+`|(?m:^    .*$)", re.DOTALL)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _keys(model: type[BaseModel], section: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{section}{name}"
        yield key
        for part in _models_in(field.annotation):
            yield from _keys(part, f"{key}.")


@pytest.fixture(scope="module")
def words() -> frozenset[str]:
    """The words in the code of all pages."""
    code = (span for page in _DOCS.glob("*.md") for span in _CODE.findall(page.read_text(encoding="utf-8")))
    return frozenset(word for span in code for word in re.findall(r"\w+", span))


@pytest.mark.parametrize("key", list(_keys(ClusterConfig)))
def test_a_setting_is_in_the_docs(key: str, words: frozenset[str]) -> None:
    assert key.rpartition(".")[2] in words
