"""Punica Serve: one base model, thousands of LoRA models, one batch.

The package itself imports little: its names are looked up when they are used. ``punica_serve.LLM`` brings in torch
when one is made, so that the control plane (scheduler, frontend, supervisor) stays free of it.
"""

from typing import TYPE_CHECKING, Any

from punica_serve.version import __version__

if TYPE_CHECKING:
    from punica_serve.offline.llm import LLM
    from punica_serve.protocol import SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from punica_serve.offline.llm import LLM

        return LLM
    if name == "SamplingParams":
        from punica_serve.protocol import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'punica_serve' has no attribute {name!r}")
