"""A host's folders of adapters that are named by their leader's."""

import pytest
from msgspec.structs import replace

from punica_serve.engine.ranks import adapter_folders
from punica_serve.engine.ranks.adapter_folders import AdapterFolders
from punica_serve.protocol import AdapterRef


def _ref(digest: str) -> AdapterRef:
    return AdapterRef(digest, "/leader", 1, {"q_proj": 8})


def test_an_adapter_is_where_it_was_last_until_it_is_forgotten() -> None:
    folders, ref = AdapterFolders(), _ref("a")
    assert folders.located(ref) is ref
    folders.remember("a", "/old")
    folders.remember("a", "/new")
    assert folders.located(ref) == replace(ref, uri="/new")
    folders.forget("a")
    folders.forget("a")
    assert folders.located(ref) is ref


def test_the_one_that_was_told_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_folders, "_MAX_FOLDERS", 2)
    folders = AdapterFolders()
    for digest in ("a", "b", "a", "c"):
        folders.remember(digest, "/here")
    assert [folders.located(_ref(digest)).uri for digest in "abc"] == ["/here", "/leader", "/here"]
