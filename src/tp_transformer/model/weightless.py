"""Building a model without initialising its weights."""

from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_INITIALISERS = {
    Tensor.normal_,
    Tensor.uniform_,
    nn.init.kaiming_uniform_,
    nn.init.normal_,
    nn.init.uniform_,
}


class WithoutWeights(TorchFunctionMode):
    """A context in which modules are built without initialising their weights, to save time.

    The meta device would also work, but its first use imports for two seconds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Skip calls that initialise a tensor in place."""
        kwargs = kwargs or {}
        if func in _INITIALISERS:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
