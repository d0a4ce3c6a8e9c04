"""Steps on an NVIDIA GPU: CUDA graphs and overlap scheduling."""
