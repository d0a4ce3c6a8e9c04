"""Names and UUIDs of a runner's devices."""

import uuid

_NAMESPACE = uuid.UUID("8f6bd2c0-41a5-5d0a-9c0b-0d9a6d8d1c11")


def gpu_name(runner_id: str, index: int) -> str:
    """The name, for people, of the device with this index in runner.devices; the same after every restart."""
    return f"{runner_id}/{index}"


def host_uuid(kind: str, runner_id: str, index: int) -> str:
    """The UUID of a device that has none; the same after every restart."""
    return f"{kind}-{uuid.uuid5(_NAMESPACE, gpu_name(runner_id, index))}"
