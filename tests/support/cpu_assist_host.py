"""Which hosts have CPU processes that help prefills."""

import platform

import pytest

#: For tests of them. On another processor, the numbers of their system calls are those of other calls.
NEEDS_CPU_ASSIST = pytest.mark.skipif(platform.machine() != "x86_64", reason="CPU processes need x86-64")
