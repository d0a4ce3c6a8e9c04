"""The dense projection y = x W^T. Decoding has few rows: then the weights' bytes are all that counts."""

from torch import Tensor
from torch.nn import functional

from punica_kernels.checks import require_dense_rows, require_shape


def linear(x: Tensor, weight: Tensor, *, in_parts: bool = False, chained: bool = False) -> Tensor:
    """x @ weight.T: [num_rows, out] of x's dtype, or with `in_parts` maybe float32 [parts, num_rows, out], to be added.

    A narrow projection keeps a whole GPU busy only if its inputs are divided too, among programs that each have a part
    of the sum. Who reads such a result next can add the parts on the way.

    x: [num_rows, in], of dense rows; weight: [out, in], contiguous. `chained`, on CUDA, lets it start while the kernel
    before it on the stream ends.

    Raises ValueError, naming the argument, when the shapes do not fit.
    """
    require_shape("x", x, len(x), weight.shape[-1])
    require_shape("weight", weight, len(weight), x.shape[1])
    if x.is_cuda:
        require_dense_rows(x=x)
        if not weight.is_contiguous():
            raise ValueError(f"weight must be contiguous, got strides {weight.stride()}")
        from punica_kernels.gpu import linear as gpu

        config = gpu.linear_config(x, weight, in_parts=in_parts)
        if config is not None:
            return gpu.linear(x, weight, config, chained=chained)
    return functional.linear(x, weight)
