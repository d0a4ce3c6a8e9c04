import json
from pathlib import Path

import pytest

from punica_serve.base_model.weight_headers import StoredTensor, list_weights
from punica_serve.errors import ModelFileMissing, ModelRejected

HEADER = b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
WHOLE = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8)


def write(folder: Path, content: bytes) -> Path:
    (folder / "model.safetensors").write_bytes(content)
    return folder


def test_a_whole_file_passes(tmp_path: Path) -> None:
    list_weights(write(tmp_path, WHOLE))


@pytest.mark.parametrize(
    ("content", "sizes"),
    [
        (WHOLE[:-1], f"is cut short: it has {len(WHOLE) - 1} bytes, and its header describes {len(WHOLE)}"),
        (WHOLE + b"\0", f"has {len(WHOLE) + 1} bytes, and its header describes {len(WHOLE)}"),
        (WHOLE[:30], f"is cut short: it has 30 bytes, and its header alone ends at {len(WHOLE) - 8}"),
        (b"", "is cut short: it has 0 bytes, and its header alone ends at 8"),
    ],
)
def test_a_file_of_another_size_than_its_header_describes_is_refused(
    tmp_path: Path, content: bytes, sizes: str
) -> None:
    with pytest.raises(ModelRejected, match=rf"/model\.safetensors {sizes}; download it again$"):
        list_weights(write(tmp_path, content))


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 50,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        b"\2" + bytes(7) + b"[]",
    ],
)
def test_a_file_without_a_header_is_refused(tmp_path: Path, content: bytes) -> None:
    """Git leaves such a pointer where LFS is not installed."""
    with pytest.raises(
        ModelRejected, match=rf"has {len(content)} bytes, which begin with no safetensors header; download"
    ):
        list_weights(write(tmp_path, content))


def test_headers_tell_names_shapes_and_types(tmp_path: Path) -> None:
    (stored,) = list_weights(write(tmp_path, WHOLE)).values()
    assert stored == StoredTensor(tmp_path / "model.safetensors", "a", "F32", (2,))


def test_a_cut_file_of_several_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(WHOLE)
    (tmp_path / "b").write_bytes(WHOLE[:-1])
    index = {"weight_map": {"x": "a", "y": "b"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelRejected, match=rf"/b is cut short: it has {len(WHOLE) - 1} bytes") as caught:
        list_weights(tmp_path)
    assert caught.value.param == "b"


def test_a_cut_file_is_told_before_one_that_is_missing(tmp_path: Path) -> None:
    """As when the copying of a folder was interrupted."""
    (tmp_path / "b").write_bytes(WHOLE[:-1])
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a", "y": "b"}}))
    with pytest.raises(ModelRejected, match="/b is cut short"):
        list_weights(tmp_path)
    (tmp_path / "b").write_bytes(WHOLE)
    with pytest.raises(ModelFileMissing, match="names 'a', which is not in"):
        list_weights(tmp_path)
