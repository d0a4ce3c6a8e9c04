"""A host's trouble with an adapter's files is not held against the adapter."""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adapter_refusal import refusal
from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.base_model.model_config import ModelConfig


def _no_more_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", fail)


class _FailingDisk(io.FileIO):
    def readinto(self, buffer: object, /) -> int:
        raise OSError(errno.EIO, "Input/output error")


def _failing_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdopen", lambda descriptor, mode: io.BufferedReader(_FailingDisk(descriptor)))


def _no_more_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 8 TiB")

    monkeypatch.setattr(np, "empty", fail)


def _no_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "adapter_model.safetensors").unlink()


def _no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rename(folder.with_name("elsewhere"))


HOST_TROUBLES = [
    (_no_more_files, OSError, r"Too many open files.*adapter_config\.json"),
    (_failing_disk, OSError, r"Input/output error.*adapter_config\.json"),
    (_no_more_memory, MemoryError, r"adapter_config\.json: Unable to allocate 8 TiB"),
    (_no_weights, OSError, r"No such file.*adapter_model\.safetensors"),
    (_no_folder, OSError, "no such folder, or not readable: .*/good"),
]


Trouble = Callable[[Path, pytest.MonkeyPatch], None]


@pytest.mark.parametrize(("trouble", "kind", "message"), HOST_TROUBLES)
def test_a_hosts_trouble_is_not_held_against_a_registered_adapter(
    folder: Path,
    model: ModelConfig,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Trouble,
    kind: type[Exception],
    message: str,
) -> None:
    ref = read_adapter(folder, model)
    trouble(folder, monkeypatch)
    with pytest.raises(kind, match=message):
        load_adapter(ref, model)


@pytest.mark.parametrize("trouble", [trouble for trouble, _, _ in HOST_TROUBLES])
def test_a_hosts_trouble_refuses_a_new_adapter(
    folder: Path, model: ModelConfig, monkeypatch: pytest.MonkeyPatch, trouble: Trouble
) -> None:
    trouble(folder, monkeypatch)
    refusal(folder, model)
