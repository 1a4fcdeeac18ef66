"""A folder of images by class: find the wrong labels, and write the page to review them on.

    python examples/image_folder.py [FOLDER]      # writes FOLDER/images and FOLDER/cleaned; "image-folder" by default

From the command line the second half is: vri clean image-folder/images --out image-folder/cleaned
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from vri.cleaning.options import CleanOptions, SourceOptions
from vri.cleaning.pipeline import clean

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "image-folder")
images, labels = load_digits(return_X_y=True)
random = np.random.default_rng(0)
wrong = {}
for number, (pixels, label) in enumerate(zip(images[:600], labels[:600], strict=True)):
    given = (label + 1) % 10 if random.random() < 0.15 else label
    path = folder / "images" / f"digit-{given}" / f"{number:04}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((pixels.reshape(8, 8) * 15.9).astype(np.uint8)).save(path)
    wrong[f"{path.parent.name}/{path.name}"] = given != label

summary = clean(
    folder / "images",
    folder / "cleaned",
    SourceOptions(image_size=8),
    CleanOptions(epochs=15),
    progress=False,
)
share = np.mean(list(wrong.values()))
print(f"{summary.issues} labels look wrong, {summary.noise_rate:.1%} are estimated to be; in truth {share:.1%}")
print(f"open {folder / 'cleaned' / 'report.html'} to review them")
