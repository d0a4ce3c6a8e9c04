"""Where host memory lies."""

import mmap
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from punica_serve.engine.memory.numa import node_of, prefer_node

_GPU = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)


def _host(folder: Path, num_nodes: int, numa_node: str) -> dict[str, Path]:
    """The system's files of a host with this GPU."""
    for node in range(num_nodes):
        (folder / "nodes" / f"node{node}").mkdir(parents=True)
    gpu = folder / "pci" / "0000:1b:00.0"
    gpu.mkdir(parents=True)
    (gpu / "numa_node").write_text(numa_node)
    return {"pci_devices": folder / "pci", "nodes": folder / "nodes"}


@pytest.mark.parametrize(
    ("num_nodes", "numa_node", "node"), [(2, "1\n", 1), (2, "0\n", 0), (1, "0\n", None), (2, "-1\n", None)]
)
def test_the_node_of_a_gpu_is_what_the_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_nodes: int, numa_node: str, node: int | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: _GPU)
    assert node_of(torch.device("cuda", 0), **_host(tmp_path, num_nodes, numa_node)) == node


@pytest.mark.parametrize("gpu", [SimpleNamespace(), SimpleNamespace(**{**vars(_GPU), "pci_bus_id": 2})])
def test_a_gpu_that_the_system_does_not_know_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: SimpleNamespace
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    assert node_of(torch.device("cuda", 0), **_host(tmp_path, 2, "1")) is None


def test_memory_that_prefers_a_node_is_known_to_the_system() -> None:
    mapping = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    if not prefer_node(memory, 0):
        pytest.skip("this system does not allow mbind")
    maps = Path("/proc/self/numa_maps")
    if not maps.is_file():
        pytest.skip("this system does not say where memory lies")
    memory.fill_(1)
    assert re.search(rf"^{memory.data_ptr():x} prefer[^ ]*:0 ", maps.read_text(), re.MULTILINE)


def test_a_node_that_is_not_there_is_refused_and_changes_nothing() -> None:
    memory = torch.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), dtype=torch.uint8)
    assert not prefer_node(memory, 62)
    assert memory.eq(0).all()
