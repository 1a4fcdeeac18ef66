"""Small images, and folders of them, for the tests of image files."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vri.data.files import FileData
from vri.data.image_files import ImageFiles, Preparation

PLAIN = Preparation(size=8, resize=8, augment="none", mean=(0, 0, 0), std=(1, 1, 1))


def picture(width: int = 12, height: int = 10, seed: int = 0) -> Image.Image:
    """Noise: no two places look alike."""
    generator = np.random.default_rng(seed)
    return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


def save(path: Path, image: Image.Image | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (picture() if image is None else image).save(path, **options)
    return path


def cut_off(path: Path) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def only(folder: Path, name: str, prepare: Preparation = PLAIN, training: bool = False) -> ImageFiles:
    return ImageFiles(folder, [name], [0], prepare, training=training)


def said(kind: type[Exception], message: str) -> Any:
    return pytest.raises(kind, match=rf"^{re.escape(message)}$")


def summary(files: ImageFiles | None) -> list[tuple[str, int]]:
    return [] if files is None else [(files.relative_path(i), y) for i, y in enumerate(files.targets)]


def trained(data: FileData) -> dict[str, bool]:
    """Parts, and whether random cuts are made on them."""
    parts = {name: getattr(data, name) for name in ("train", "clean", "validation", "test")}
    return {name: files.training for name, files in parts.items() if files is not None}
