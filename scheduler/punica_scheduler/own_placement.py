"""Loads a placement policy of your own from its file; docs/scheduling.md has an example."""

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from punica_scheduler.core.placement import Placement
from punica_scheduler.core.step_costs import StepCosts
from punica_serve.errors import ConfigError


def load_placement(name: str, costs: StepCosts | None) -> Placement:
    """An object of the class that ``FILE.py:CLASS`` names, made with the costs of steps.

    Raises ConfigError if there is no such class, if its file or it can't be used, or if it is no placement.
    """
    file, _, class_name = name.rpartition(":")
    found = getattr(_module_of(Path(file)), class_name, None)
    if not isinstance(found, type) or Placement not in found.__mro__:
        base = f"{Placement.__module__}.{Placement.__name__}"
        raise _error(f"{file} has no class {class_name} that inherits from {base}")
    if getattr(found, "candidates", None) is Placement.candidates:
        raise _error(f"{class_name} of {file} has no method `candidates`, which yields GPUs in order of preference")
    try:
        made: Placement = found(costs)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise _error(f"{class_name} of {file} can't be made with one argument, the costs of steps: {reason}") from error
    return made


def _module_of(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"own_placement:{file}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise _error(f"{file} is not there")
    module = importlib.util.module_from_spec(spec)
    # A dataclass whose annotations are strings looks for its module there.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        where = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = f", line {where[-1]}" if where else ""
        raise _error(f"{file}{line}: {type(error).__name__}: {error}") from error
    return module


def _error(message: str) -> ConfigError:
    return ConfigError(f"the placement policy: {message}", param="scheduler.placement")
