"""`bench kernels`: the operators, each measured in a CUDA graph on cold weights. ``run.run`` is the entry point."""
