"""The types of the fixtures that make engines, loaders and adapters."""

from collections.abc import Callable

from loader_harness import LoaderHarness
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef

#: Called with settings of an engine.
MakeEngine = Callable[..., Engine]
#: Called with a rank, a seed, and settings of an adapter.
MakeAdapter = Callable[..., AdapterRef]
#: Called with a number of pages.
MakeHarness = Callable[..., LoaderHarness]
