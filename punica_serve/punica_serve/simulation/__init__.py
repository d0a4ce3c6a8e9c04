"""Simulated GPUs: the engine's batching rules with a clock in place of a device. Free of torch.

The simulator of the scheduler and the runner's simulated workers drive the same ``SimulatedWorker``, the one at the
times of events, the other in real time.
"""
