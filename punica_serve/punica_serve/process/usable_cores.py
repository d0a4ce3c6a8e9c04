"""The cores that this process may use: those that it is bound to, as far as its container's quota goes."""

import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
#: Files of older cgroups: processor time for each period, and the period.
_OLD_QUOTA, _OLD_PERIOD = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """At least one. More threads than these would use up a quota, and stop with all others until the next period."""
    return max(1, int(min([_bound_cores(), *_quotas(cgroup)])))


def _bound_cores() -> int:
    with suppress(AttributeError):  # Linux alone
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(cgroup: Path) -> list[float]:
    """Empty without a quota, or where no container's files are."""
    quotas = []
    with suppress(OSError):
        quotas.append((cgroup / "cpu.max").read_text().split())
    with suppress(OSError):
        quotas.append([(cgroup / name).read_text().strip() for name in (_OLD_QUOTA, _OLD_PERIOD)])
    return [int(quota) / int(period) for quota, period in quotas if quota.isdecimal()]  # "max" or -1: none
