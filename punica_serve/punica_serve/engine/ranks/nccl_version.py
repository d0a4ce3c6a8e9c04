"""Versions of NCCL that are known to fail where a group has several hosts."""

import logging

import torch

log = logging.getLogger(__name__)

Version = tuple[int, ...]

#: The first one that is known not to deadlock (vLLM's issue 52504).
_FIRST_SOUND: Version = (2, 30, 4)


def warn_of_nccl(device: torch.device, *, cuda_graphs: bool) -> None:
    """Logs a warning if this process's NCCL may deadlock between hosts."""
    if device.type == "cuda" and cuda_graphs and (warning := nccl_warning(torch.cuda.nccl.version())):
        log.warning("%s", warning)


def nccl_warning(version: Version) -> str | None:
    """The warning about a version in CUDA graphs across hosts; None if none is known."""
    if version >= _FIRST_SOUND:
        return None
    own, sound = (".".join(map(str, each)) for each in (version, _FIRST_SOUND))
    return (
        f"NCCL {own} may deadlock in CUDA graphs across hosts, as 2.28.9 does; install {sound} or later"
        " (nvidia-nccl), or set `engine.cuda_graphs: false`"
    )
