"""The scheduler's second shell: a heap of timed events in place of sockets, simulated GPUs in place of runners."""
