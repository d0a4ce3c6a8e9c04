"""Gates within the CUDA graph of a step: each lets a group of layers' LoRA begin once its weights are on the device.

A gate is an event outside the graph, for which the graph waits (an external event of CUDA). A launched graph waits for
what the event stood for at the launch. So a gate that is closed again for the next step holds no earlier one, and a
gate that nobody has closed costs a microsecond. Only copies that are queued close a gate: they end without any help of
the host, so no step can wait for ever.
"""

import torch

from punica_serve.engine.adapters.layer_arrival import CudaArrival, layer_groups


class LayerGates:
    """The gates of one engine's steps with a prefill, shared by its graphs, which run in turns."""

    def __init__(self, num_layers: int, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._gates = {layers[0]: torch.cuda.Event(external=True) for layers in layer_groups(num_layers)}
        for gate in self._gates.values():
            gate.record(self._stream)  # open

    def close_until(self, arrival: CudaArrival) -> None:
        """Closes the gates, for steps launched from now on, until the groups of a copy have arrived.

        The copy must be awaitable.
        """
        for gate, event in zip(self._gates.values(), arrival.events, strict=True):
            self._stream.wait_event(event)
            gate.record(self._stream)

    def wait(self, layer: int, stream: torch.cuda.Stream) -> None:
        """``stream`` waits before a layer that begins a group. Part of a graph if it is being captured."""
        if (gate := self._gates.get(layer)) is not None:
            stream.wait_event(gate)
