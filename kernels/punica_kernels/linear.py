"""The dense projection y = x W^T. With the few rows of a decode, only the bytes of the weights count."""

from torch import Tensor
from torch.nn import functional

from punica_kernels.checks import require_dense_rows, require_shape


def linear(x: Tensor, weight: Tensor, *, split_k: bool = False, pdl: bool = False) -> Tensor:
    """x @ weight.T: [num_rows, out] of x's dtype.

    `split_k` allows float32 partial sums [splits, num_rows, out] instead, for the operator that reads them to add: a
    narrow projection keeps a whole GPU busy only if its inputs are split among programs, too.

    x: [num_rows, in], of dense rows; weight: [out, in], contiguous. `pdl`, on CUDA, lets it start while the kernel
    before it on the stream ends.

    Raises ValueError, naming the argument, when the shapes do not fit.
    """
    if not (x.dim() == weight.dim() == 2 and x.shape[1] == weight.shape[1]):
        require_shape("x", x, len(x), weight.shape[-1])
        require_shape("weight", weight, len(weight), x.shape[1])
    if x.is_cuda:
        require_dense_rows(x=x)
        if not weight.is_contiguous():
            raise ValueError(f"weight must be contiguous, got strides {weight.stride()}")
        from punica_kernels.gpu import linear as gpu

        config = gpu.linear_config(x, weight, may_split=split_k)
        if config is not None:
            return gpu.linear(x, weight, config, pdl=pdl)
    return functional.linear(x, weight)
