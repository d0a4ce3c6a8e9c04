"""Host memory on the NUMA node of the GPU that copies from it: copies from another socket cross the link between them.

Linux alone, by its own call (mbind), which some containers forbid: memory is then where the system puts it.
"""

import ctypes
import logging
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

_PCI_DEVICES, _NODES = Path("/sys/bus/pci/devices"), Path("/sys/devices/system/node")
#: The number of mbind, which the C library has no function for.
_MBIND = {"x86_64": 237, "aarch64": 235}
#: Takes pages of this node as long as it has any.
_MPOL_PREFERRED = 1
_MASK_BITS = 64


def node_of(device: torch.device, pci_devices: Path = _PCI_DEVICES, nodes: Path = _NODES) -> int | None:
    """The NUMA node of a GPU; None if the host has one alone, or does not say."""
    if len(list(nodes.glob("node[0-9]*"))) < 2:
        return None
    gpu: Any = torch.cuda.get_device_properties(device)  # torch's types don't know all of it
    try:
        name = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
        node = int((pci_devices / name / "numa_node").read_text())
    except (AttributeError, OSError, ValueError):
        return None
    return node if 0 <= node < _MASK_BITS - 1 else None


def prefer_node(memory: Tensor, node: int) -> bool:
    """Asks the system to take untouched pages from a node. Returns whether it will.

    ``memory``: uint8, from the start of a page on.
    """
    number = _MBIND.get(platform.machine())
    if sys.platform != "linux" or number is None or not len(memory):
        return False
    mask = ctypes.c_ulong(1 << node)
    address, length = ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(len(memory))
    arguments = (address, length, _MPOL_PREFERRED, ctypes.byref(mask), ctypes.c_ulong(_MASK_BITS), 0)
    return bool(ctypes.CDLL(None).syscall(number, *arguments) == 0)


def bring_to_gpu(memory: Tensor, device: torch.device) -> None:
    """Prefers the node of a GPU, before anybody touches the memory."""
    node = node_of(device)
    if node is None:
        return
    if prefer_node(memory, node):
        log.info("host memory of adapters is on NUMA node %d, that of %s", node, device)
    else:
        log.warning("host memory of adapters may be far from %s: mbind is not allowed here", device)
