"""Which GPUs may join."""

from punica_serve.errors import ProtocolError
from punica_serve.performance.profile import PerformanceProfile, devices_in_words
from punica_serve.protocol import SIMULATED_DEVICE, GpuInfo


def check_gpu(gpu: GpuInfo, profile: PerformanceProfile | None) -> None:
    """Raises ProtocolError for a GPU that could hold nothing, and for one that the profile is not of.

    A simulated GPU is as fast as its own profile says.
    """
    if min(gpu.max_batch_size, gpu.page_size, gpu.num_kv_pages) < 1:
        raise ProtocolError(f"GPU {gpu.name} can't join without a batch, a page size and pages: {gpu}")
    if profile is None or gpu.device_name == SIMULATED_DEVICE:
        return
    own = devices_in_words(gpu.device_name, len(gpu.rank_uuids))
    if own != profile.device_words:
        raise ProtocolError(
            f"GPU {gpu.name} can't join: it is a {own}, and `scheduler.profile` is of a {profile.device_words};"
            " measure this device with `punica-serve profile`"
        )
