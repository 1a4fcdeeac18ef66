"""Pretrained encoders: images or texts as rows of numbers. Weights come with a package or a file, never from a hub.

encoder = vri.encoders.load("auto", "images")
X = encoder(images)  # (n, d); then VRIClassifier().fit(X, labels)
"""

from vri.encoders.encoder import IMAGES, TEXTS, Encoder
from vri.encoders.names import installed, load

__all__ = ["IMAGES", "TEXTS", "Encoder", "installed", "load"]
