import errno
import json
from pathlib import Path
from typing import Any

import pytest

from punica_serve.base_model.weight_files import weight_files
from punica_serve.errors import ModelRejected

INDEX = "model.safetensors.index.json"


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_one_file_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]


def test_the_files_of_an_index_come_once_and_sorted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    write_index(tmp_path, {"x": "b", "y": "a", "z": "b"})
    assert weight_files(tmp_path) == [tmp_path / "a", tmp_path / "b"]


def test_links_may_lead_out_of_the_folder(tmp_path: Path) -> None:
    """The Hub's cache is made of them."""
    (tmp_path / "blob").touch()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "a").symlink_to(tmp_path / "blob")
    write_index(tmp_path / "snapshot", {"x": "a"})
    assert weight_files(tmp_path / "snapshot") == [tmp_path / "snapshot" / "a"]


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ("a", "`weight_map` is not valid"),
        ({}, "`weight_map` is not valid"),
        ({"x": 1}, r"`weight_map\[...\]` is not valid: Expected `str`, got `int`"),
        ({"x": "none"}, "names 'none', which is not in"),
        ({"x": "n" * 5000}, "n', which is not in"),
        ({"x": "nul\0"}, "which is not in"),
        ({"x": ""}, "names '', which is a folder, not a file; download that file"),
        ({"x": "/etc/hostname"}, "names '/etc/hostname', which is outside of"),
        ({"x": "sub/../../model.safetensors"}, "which is outside of"),
    ],
)
def test_a_wrong_index_is_refused_by_name(tmp_path: Path, weight_map: Any, message: str) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelRejected, match=message) as caught:
        weight_files(tmp_path)
    assert INDEX in caught.value.message


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").touch()

    def refuse(*_: object) -> None:  # as to a user that is not the superuser
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelRejected, match=r"/model\.safetensors can't be read: Permission denied$"):
        weight_files(tmp_path)


def test_an_index_must_be_json(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(ModelRejected, match="is not JSON"):
        weight_files(tmp_path)


def test_pickles_are_no_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelRejected, match="only safetensors weights are read"):
        weight_files(tmp_path)
