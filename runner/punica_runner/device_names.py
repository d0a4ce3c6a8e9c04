"""UUIDs for devices that have none."""

import uuid

_NAMESPACE = uuid.UUID("8f6bd2c0-41a5-5d0a-9c0b-0d9a6d8d1c11")


def host_uuid(kind: str, runner_id: str, index: int) -> str:
    """The UUID of the device with this index on a runner's host; the same after every restart."""
    return f"{kind}-{uuid.uuid5(_NAMESPACE, f'{runner_id}/{index}')}"
