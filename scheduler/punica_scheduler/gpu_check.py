"""Which GPUs may join."""

from punica_serve.errors import ProtocolError
from punica_serve.performance.profile import PerformanceProfile
from punica_serve.protocol import SIMULATED_DEVICE, GpuInfo


def check_gpu(gpu: GpuInfo, profile: PerformanceProfile | None) -> None:
    """Raises ProtocolError for a GPU that could hold nothing, and for one that the profile is not of.

    A simulated GPU is as fast as its own profile says.
    """
    if min(gpu.max_batch_size, gpu.page_size, gpu.num_kv_pages) < 1:
        raise ProtocolError(f"GPU {gpu.name} can't join without a batch, a page size and pages: {gpu}")
    if profile is not None and gpu.device_name not in (profile.device, SIMULATED_DEVICE):
        raise ProtocolError(
            f"GPU {gpu.name} can't join: it is a {gpu.device_name!r}, and `scheduler.profile` is of a "
            f"{profile.device!r}; measure this device with `punica-serve profile`"
        )
