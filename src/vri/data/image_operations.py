"""The operations of RandAugment on whole batches of small images: uint8, n x channels x height x width.

Each one returns what Pillow returns for the same image, grey (one channel) or RGB (three); a position between pixels
takes the nearest one, Pillow's default. Parameters that differ between images come as a tensor with one number per
image.
"""

from functools import cache

import torch
from torch import Tensor


def affine(x: Tensor, matrices: Tensor, fill: int) -> Tensor:
    """Take each pixel from where its image's matrix, n x 3 x 3, sends its centre; `fill` outside the image.

    Coordinates are (column, row, 1) in pixels from the upper left corner, as in Pillow's ``Image.transform``.
    """
    height, width = x.shape[2:]
    m = matrices.to(x.device, torch.float32)[..., None, None]  # n x 3 x 3 x 1 x 1
    columns = torch.arange(width, device=x.device) + 0.5
    rows = torch.arange(height, device=x.device)[:, None] + 0.5
    column = (m[:, 0, 0] * columns + (m[:, 0, 1] * rows + m[:, 0, 2])).floor_()  # n x h x w
    row = (m[:, 1, 0] * columns + (m[:, 1, 1] * rows + m[:, 1, 2])).floor_()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    # one more pixel at the end of each image, which all positions outside read
    pixels = x.new_full((*x.shape[:2], height * width + 1), fill)
    pixels[..., :-1] = x.flatten(2)
    index = torch.where(inside, row.mul_(width).add_(column), height * width).long().flatten(1)  # n x hw
    return pixels.gather(2, index[:, None].expand(-1, x.shape[1], -1)).view_as(x)


def look_up(x: Tensor, tables: Tensor) -> Tensor:
    """Replace each value by that in its image's and channel's table, n x c x 256."""
    return tables.gather(2, x.flatten(2).long()).view_as(x)


def autocontrast_table(x: Tensor) -> Tensor:
    """Stretch each channel to 0..255; a channel of one value stays."""
    low, high = (v.double()[..., None] for v in (x.flatten(2).amin(2), x.flatten(2).amax(2)))  # n x c x 1
    # This order of operations in float64 rounds as Pillow does; 255 / (high - low) would go through a reciprocal.
    scale = torch.full_like(low, 255).div_(high - low)  # n x c x 1; infinite for a channel of one value
    values = _values(x.device).double()
    stretched = (values * scale + -low * scale).clamp_(0, 255)
    return torch.where(high > low, stretched, values).to(torch.uint8)


def equalize_table(x: Tensor) -> Tensor:
    """Spread the values of each channel so that their histogram becomes flat."""
    n, channels = x.shape[:2]
    place = torch.arange(n * channels, device=x.device).view(n, channels, 1) * 256
    counts = (x.flatten(2) + place).flatten().bincount(minlength=n * channels * 256).view(n, channels, 256)
    below = counts.cumsum(2) - counts
    highest = x.flatten(2).amax(2, keepdim=True).long()
    step = below.gather(2, highest).div_(255, rounding_mode="floor")  # n x c x 1; 0 for a channel of one value
    table = (below + step // 2).div_(step.clamp(min=1), rounding_mode="floor").clamp_(max=255)
    return torch.where(step > 0, table, _values(x.device)).to(torch.uint8)


def solarize_table(x: Tensor, threshold: float) -> Tensor:
    """Invert values at or above `threshold`."""
    values = _values(x.device)
    return torch.where(values < threshold, values, 255 - values).to(torch.uint8).expand(*x.shape[:2], 256)


def posterize_table(x: Tensor, bits: int) -> Tensor:
    """Keep the highest `bits` bits of each value."""
    dropped = 2 ** (8 - bits) - 1
    table: Tensor = _values(x.device) & (255 - dropped)
    return table.to(torch.uint8).expand(*x.shape[:2], 256)


def brightness_table(x: Tensor, factors: Tensor) -> Tensor:
    """Move values away from black by the image's factor; below 1 towards it."""
    values = _values(x.device).float().view(1, 1, 256)
    return _blend(torch.zeros_like(values), values, factors[:, None, None]).expand(*x.shape[:2], 256)


def contrast_table(x: Tensor, factors: Tensor) -> Tensor:
    """Move values away from the image's mean grey by its factor; below 1 towards it."""
    pixels = x[0, 0].numel()
    total = _luma(x).flatten(1).sum(1)  # n; int64
    mean = (2 * total + pixels).div_(2 * pixels, rounding_mode="floor").float()  # rounded half up
    values = _values(x.device).float().view(1, 1, 256)
    return _blend(mean[:, None, None], values, factors[:, None, None]).expand(*x.shape[:2], 256)


def color(x: Tensor, factors: Tensor) -> Tensor:
    """Move colours away from grey by the image's factor; below 1 towards it. A grey image stays."""
    if x.shape[1] == 1:
        return x
    return _blend(_luma(x).float(), x.float(), factors[:, None, None, None])


def sharpness(x: Tensor, factors: Tensor) -> Tensor:
    """Move pixels away from the smoothed image by the image's factor; below 1 towards it."""
    pixels = x.float()
    smooth = pixels.clone()  # the outermost pixels stay as they are
    if min(x.shape[2:]) > 2:
        rows = pixels[..., :-2, :] + pixels[..., 1:-1, :] + pixels[..., 2:, :]
        box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
        centre = pixels[..., 1:-1, 1:-1]
        # weights 1 around and 5 in the middle; a multiple of 1/13 is never halfway between two integers
        smooth[..., 1:-1, 1:-1] = ((box + 4 * centre) / 13 + 0.5).floor_()
    return _blend(smooth, pixels, factors[:, None, None, None])


@cache
def _values(device: torch.device) -> Tensor:
    return torch.arange(256, device=device)


def _luma(x: Tensor) -> Tensor:
    """Grey of each pixel, int32, n x 1 x h x w: ITU-R 601-2 in 16 bits, rounded."""
    if x.shape[1] == 1:
        return x.int()
    red, green, blue = x.int().split(1, dim=1)
    grey: Tensor = (19595 * red + 38470 * green + 7471 * blue + 2**15) >> 16
    return grey


def _blend(one: Tensor, other: Tensor, factors: Tensor) -> Tensor:
    """one + factor * (other - one), cut to 0..255 and rounded down."""
    return (one + factors * (other - one)).clamp_(0, 255).to(torch.uint8)
