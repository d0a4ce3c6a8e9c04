"""The engine's part of tensor parallelism: the exchanges between the ranks of a group."""
