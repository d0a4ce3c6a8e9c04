"""Simulated GPUs: the engine's batching rules with a clock in place of a device. Free of torch.

The scheduler's simulator and the runner's simulated workers drive the same ``SimulatedWorker``: the simulator at the
times of its events, the workers in real time.
"""
