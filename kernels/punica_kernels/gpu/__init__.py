"""The operators as Triton kernels. Imported where tensors lie on a GPU, and by tests in Triton's interpreter."""
