"""BatchNorm over the batches of all workers."""

import torch
from torch import Tensor, nn

from vri.training import distributed


class SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm whose mean and variance are those of the whole batch, not of a worker's rows.

    PyTorch's own runs only on GPUs and lacks the forward-mode derivative that the tangent pass needs.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; statistics are at least float32."""
        if not self.training or distributed.world() == 1:
            return super().forward(input)
        dims = [0, *range(2, input.ndim)]
        shape = (1, -1, *[1] * (input.ndim - 2))  # one number per channel
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        counted = distributed.total(torch.cat([x.sum(dims), x.new_tensor([x.numel() / x.shape[1]])]))
        count, mean = counted[-1].detach(), counted[:-1] / counted[-1].detach()
        centred = x - mean.view(shape)
        var = distributed.total(centred.square().sum(dims)) / count
        self._remember(mean.detach(), (var * count / (count - 1)).detach())
        scale = (var + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        out = centred * scale.view(shape)
        if self.bias is not None:
            out = out + self.bias.view(shape)
        return out.to(input.dtype)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"BatchNorm got an input of shape {tuple(input.shape)}, expected (n, channels, ...)")

    def _remember(self, mean: Tensor, var: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            momentum = self.momentum
            if momentum is None:  # the mean of all batches so far
                momentum = 1.0 / float(self.num_batches_tracked)
            for running, new in ((self.running_mean, mean), (self.running_var, var)):
                running.lerp_(new.to(running.dtype), momentum)


def synchronise(model: nn.Module) -> nn.Module:
    """Make each BatchNorm layer normalise over all workers' batches; parameters, buffers and names stay."""
    if type(model) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        assert isinstance(model, nn.modules.batchnorm._BatchNorm)
        other = SynchronisedBatchNorm(model.num_features, model.eps, model.momentum, affine=False)
        other.__dict__.update({k: v for k, v in model.__dict__.items() if not k.endswith("_hooks")})
        return other
    for name, child in model.named_children():
        setattr(model, name, synchronise(child))
    return model
