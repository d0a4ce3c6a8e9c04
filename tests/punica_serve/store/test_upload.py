import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from adapter_uploads import CONFIG, FORM, MAX_BYTES, WEIGHTS, Files, form, receive, tarred, zipped
from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected, InvalidRequest, TooLarge
from punica_serve.protocol import AdapterRef
from punica_serve.store.file_sink import FileSink

PACKERS: dict[str, Callable[[Files], bytes]] = {
    "zip": zipped,
    "tar": tarred,
    "gnu": lambda files: tarred(files, format=tarfile.GNU_FORMAT),
    "ustar": lambda files: tarred(files, format=tarfile.USTAR_FORMAT),
    "tar.gz": lambda files: tarred(files, "w:gz"),
}


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
@pytest.mark.parametrize("top", ["", "my-adapter/", "./", "a/b/"])
async def test_takes_archives(
    folder: Path, files: Files, ref: AdapterRef, model: ModelConfig, pack: Callable[[Files], bytes], top: str
) -> None:
    more = {"README.md": b"#", "__MACOSX/._adapter_config.json": b"?", "checkpoint/optimizer.pt": bytes(5000)}
    await receive(pack({**{top + name: content for name, content in files.items()}, **more}), folder)
    assert sorted(os.listdir(folder)) == [CONFIG, WEIGHTS]
    assert read_adapter(folder, model).digest == ref.digest


@pytest.mark.parametrize("pack", [None, *PACKERS.values()], ids=["files", *PACKERS])
async def test_takes_forms(
    folder: Path, files: Files, ref: AdapterRef, model: ModelConfig, pack: Callable[[Files], bytes] | None
) -> None:
    body = form(files if pack is None else {"adapter.any": pack(files)})
    await receive(body, folder, 'multipart/form-data; boundary="xyz"')
    assert sorted(os.listdir(folder)) == [CONFIG, WEIGHTS]
    assert read_adapter(folder, model).digest == ref.digest


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "x/" + CONFIG])
async def test_refuses_names_before_it_writes(
    folder: Path, files: Files, pack: Callable[[Files], bytes], name: str
) -> None:
    with pytest.raises(InvalidRequest, match=r"leads out|more than one"):
        await receive(pack({**files, name: b"x"}), folder)
    assert os.listdir(folder) == [".archive"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
async def test_refuses_links_and_devices_in_tars(folder: Path, kind: bytes) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        info = tarfile.TarInfo(CONFIG)
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(InvalidRequest, match="link, a device"):
        await receive(target.getvalue(), folder)


async def test_refuses_links_in_zips(folder: Path) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        info = zipfile.ZipInfo(CONFIG)
        info.create_system, info.external_attr = 3, 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(InvalidRequest, match="link, a device"):
        await receive(target.getvalue(), folder)


@pytest.mark.parametrize("pack", [zipped, PACKERS["tar.gz"]])
async def test_refuses_what_expands_too_far(folder: Path, files: Files, pack: Callable[[Files], bytes]) -> None:
    bomb = pack({**files, "zeros": bytes(20 << 20)})
    assert len(bomb) < MAX_BYTES
    with pytest.raises(TooLarge, match="expands to more than"):
        await receive(bomb, folder)
    assert os.listdir(folder) == [".archive"]


@pytest.mark.parametrize(
    ("pack", "content_type"), [(zipped, ""), (PACKERS["tar"], ""), (PACKERS["tar.gz"], ""), (form, FORM)]
)
async def test_refuses_a_bomb_of_zeros_before_it_is_on_the_disk(
    folder: Path, files: Files, pack: Callable[[Files], bytes], content_type: str
) -> None:
    with pytest.raises(AdapterRejected, match=r"adapter_model\.safetensors: its header is not a safetensors header"):
        await receive(pack({**files, WEIGHTS: bytes(MAX_BYTES - 10_000)}), folder, content_type)
    assert (folder / WEIGHTS).stat().st_size == 0


@pytest.mark.parametrize("pack", [*PACKERS.values(), form])
async def test_refuses_weights_that_go_on_beyond_their_header(
    folder: Path, files: Files, pack: Callable[[Files], bytes]
) -> None:
    num_bytes = len(files[WEIGHTS])
    content_type = FORM if pack is form else ""
    with pytest.raises(AdapterRejected, match=f"its header describes a file of {num_bytes} bytes"):
        await receive(pack({**files, WEIGHTS: files[WEIGHTS] + b"x"}), folder, content_type)


@pytest.mark.parametrize("num_bytes", [1, 1000, 1 << 20])
async def test_a_header_may_come_in_any_pieces(folder: Path, files: Files, num_bytes: int) -> None:
    sink = FileSink(folder / WEIGHTS, MAX_BYTES)
    for start in range(0, len(files[WEIGHTS]), num_bytes):
        sink.write(files[WEIGHTS][start : start + num_bytes])
    sink.finish()
    assert (folder / WEIGHTS).read_bytes() == files[WEIGHTS]


async def test_refuses_a_bomb_of_headers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says that no file follows, and so none is counted."""
    header = bytearray(tarred({"x": b""})[:512])
    header[156:157] = b"x"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    monkeypatch.setattr("punica_serve.store.archive._MAX_TAR_HEADERS_BYTES", 1 << 16)
    bomb = gzip.compress(bytes(header) * (4 << 11))
    assert len(bomb) < MAX_BYTES
    with pytest.raises(TooLarge, match="expands"):
        await receive(bomb, folder)


@pytest.mark.parametrize("num_more", [98, 99])
@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
async def test_refuses_an_archive_of_very_many_files(
    folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch, pack: Callable[[Files], bytes], num_more: int
) -> None:
    monkeypatch.setattr("punica_serve.store.archive._MAX_MEMBERS", 100)
    body = pack({**files, **{f"{number}": b"" for number in range(num_more)}})
    if num_more == 98:
        await receive(body, folder)
        return
    with pytest.raises(TooLarge, match="the archive holds more than 100 files; send only the adapter's files"):
        await receive(body, folder)


async def test_the_members_of_a_zip_are_counted_before_it_is_opened(
    folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counts members, not the number that the archive claims."""
    body = bytearray(zipped({**files, **{f"{number}": b"" for number in range(100)}}))
    body[-14:-10] = bytes(4)
    monkeypatch.setattr("punica_serve.store.archive._MAX_MEMBERS", 100)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(TooLarge, match="more than 100 files"):
        await receive(bytes(body), folder)


async def test_refuses_a_tar_of_very_many_headers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte of headers that say something of no file would be read for half a minute."""
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    monkeypatch.setattr("punica_serve.store.archive._MAX_TAR_HEADERS", 400)
    with pytest.raises(TooLarge, match="more than 10000 files"):
        await receive(gzip.compress(header.tobuf() * 401), folder)


@pytest.mark.parametrize("size", [b"-0000001000\x00", b"+0000001000\x00", b"1_000      \x00"])
async def test_refuses_sizes_in_tars_that_are_no_octal_numbers(folder: Path, size: bytes) -> None:
    """By a negative one a reader would come back to the same header for ever."""
    header = bytearray(tarfile.TarInfo("x").tobuf())
    header[124:136], header[156:157] = size, b"x"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\x00 " % sum(header)
    with pytest.raises(InvalidRequest, match="not octal"):
        await receive(bytes(header) + bytes(1024), folder)


async def test_refuses_a_zip_of_a_version_to_come(folder: Path, files: Files) -> None:
    body = bytearray(zipped(files))
    body[body.index(b"PK\x01\x02") + 6] = 99
    with pytest.raises(InvalidRequest, match="unsupported kind"):
        await receive(bytes(body), folder)


async def test_refuses_a_zip_whose_directory_is_very_large(folder: Path, files: Files) -> None:
    body = bytearray(zipped(files))
    body[-10:-6] = (100 << 20).to_bytes(4, "little")
    with pytest.raises(TooLarge, match="too many files"):
        await receive(bytes(body), folder)


async def test_refuses_a_file_of_the_form_that_is_too_large(folder: Path, files: Files) -> None:
    with pytest.raises(TooLarge, match=r"adapter_config\.json"):
        await receive(form({CONFIG: bytes(MAX_BYTES + 1)}), folder, FORM)


async def test_refuses_a_body_that_is_too_large(folder: Path) -> None:
    with pytest.raises(TooLarge, match="the upload is larger"):
        await receive(bytes(3 * MAX_BYTES), folder)


@pytest.mark.parametrize("pack", [*PACKERS.values(), None], ids=[*PACKERS, "form"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("adapter_model.bin", "pickles are never read"),
        ("adapter_model-00001-of-00002.safetensors", "split adapters are not read"),
    ],
)
async def test_refuses_other_weights_with_a_hint(
    folder: Path, files: Files, pack: Callable[[Files], bytes] | None, name: str, reason: str
) -> None:
    other = {CONFIG: files[CONFIG], name: b"\x80\x04."}
    body = form(other) if pack is None else pack(other)
    with pytest.raises(AdapterRejected, match=reason) as caught:
        await receive(body, folder, FORM if pack is None else "")
    assert caught.value.param == name


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
async def test_refuses_archives_that_lack_a_file(folder: Path, files: Files, pack: Callable[[Files], bytes]) -> None:
    with pytest.raises(InvalidRequest, match=r"no adapter_config\.json"):
        await receive(pack({WEIGHTS: b"x"}), folder)
    (folder / ".archive").unlink()
    with pytest.raises(InvalidRequest, match=r"no adapter_model\.safetensors"):
        await receive(pack({CONFIG: b"x", "other/" + WEIGHTS: b"x"}), folder)


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
async def test_refuses_broken_archives(tmp_path: Path, files: Files, pack: Callable[[Files], bytes]) -> None:
    body = pack(files)
    for number, broken in enumerate((body[: len(body) // 2], body[:700], body[:3], b"", bytes(range(256)) * 9)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(InvalidRequest):
            await receive(broken, folder)


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (b"", "multipart/form-data", "boundary"),
        (b"", "multipart/form-data; boundary=" + "x" * 1000, "can't be read"),
        (b"nonsense", FORM, "can't be read"),
        (form({CONFIG: b"{}"})[:-10], FORM, "truncated"),
        (form({}), FORM, "no files"),
        (form({CONFIG: b"{}"}), FORM, r"lacks adapter_model\.safetensors"),
        (form({WEIGHTS: b"x"}), FORM, r"lacks adapter_config\.json"),
        (form({CONFIG: b"{}", "x.zip": b""}), FORM, "beside other files"),
        (form({"x.zip": b"", CONFIG: b"{}"}), FORM, "beside other files"),
        (form({"x.zip": b"no archive"}), FORM, "not a zip, tar"),
    ],
)
async def test_refuses_broken_forms(folder: Path, body: bytes, content_type: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await receive(body, folder, content_type)
