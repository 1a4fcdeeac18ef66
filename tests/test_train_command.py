"""`vri train`: settings from file and command line, the sets it prepares, the run and what it leaves."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from vri import backbones, data, noise
from vri.cli import main
from vri.data.images import ImageData
from vri.data.splits import save_split, split_hash
from vri.methods import METHODS
from vri.methods.vri_literal import PAPER
from vri.paper import prepare as preparation
from vri.paper.prepare import prepare
from vri.paper.settings import Settings, SettingsError, configs, find_config, method_options, resolve
from vri.paper.training_run import train_run
from vri.training.checkpoints import load_checkpoint
from vri.training.selection import balanced

SMALL: dict[str, Any] = {
    "dataset": "digits",
    "noise": "flip",
    "rate": 0.4,
    "clean": 40,
    "limit": 200,
    "epochs": 2,
    "method": "vri",
    "options": {"hidden": [16], "label_dim": 4},
    "tensorboard": False,
}


EMPTY = torch.empty(0, dtype=torch.int64)


def small(**changes: Any) -> Settings:
    return Settings(**{**SMALL, **changes})


# settings


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('dataset = "digits"\nepochs = 5\nlr = 1\n[options]\nsamples = 2\nkl_weight = 0.5\n')
    found = resolve(str(file), {"epochs": 7, "seed": None}, ["lr=0.5", "options.samples=3", "noise=pair", "limit=50"])
    assert found == Settings(
        dataset="digits", epochs=7, lr=0.5, noise="pair", limit=50, options={"samples": 3, "kl_weight": 0.5}
    )


def test_values_are_read_as_in_toml() -> None:
    found = resolve(None, {}, ["tensorboard=false", "lr=1e-3", "limit=none", 'backbone="resnet18"', "rate=1"])
    assert (found.tensorboard, found.lr, found.limit, found.backbone, found.rate) == (
        False,
        1e-3,
        None,
        "resnet18",
        1.0,
    )


def test_all_mistakes_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('epoch = 3\nbatch_size = "many"\n')
    with pytest.raises(SettingsError) as error:
        resolve(str(file), {"rate": 1.5, "method": "vrii"}, ["weight_dekay=1", "lr", "precision=fp16"])
    assert str(error.value).splitlines() == [
        "",
        f"  - 'epoch' in {file} is no setting; did you mean 'epochs'?",
        f"  - batch_size='many' in {file}: expected a whole number",
        "  - 'weight_dekay' in the command line is no setting; did you mean 'weight_decay'?",
        "  - 'lr' on the command line is no setting; expected key=value, such as lr=0.1",
        f"  - method='vrii': expected one of {', '.join(METHODS)}; did you mean 'vri'?",
        "  - precision='fp16': expected one of fp32, bf16, auto; did you mean 'bf16'?",
        "  - rate=1.5: expected a share from 0 to 1, such as 0.4 for 40 %",
    ]


def test_an_option_the_method_does_not_have() -> None:
    with pytest.raises(SettingsError) as error:
        resolve(None, {}, ["options.sample=2"])
    assert str(error.value) == "options.sample is no option of vri; did you mean 'samples'?"


@pytest.mark.parametrize("name", METHODS)
def test_options_of_every_method_are_known(name: str) -> None:
    found = method_options(name)
    assert "head" in found
    assert not {"generator", "autocast", "model", "options"} & set(found)


def test_a_file_that_is_no_toml_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("epochs: 3")
    with pytest.raises(SettingsError, match=r"a\.toml is no TOML file \(.*\); expected lines like epochs = 12"):
        resolve(str(tmp_path / "a.toml"))
    with pytest.raises(SettingsError, match=r"no configuration of that name; did you mean 'clothing1m'\?"):
        find_config("configs/clothing.toml")


@pytest.mark.parametrize("name", configs())
def test_packaged_configurations(name: str) -> None:
    """Each can be used, and its header has title, command, published score and time."""
    text = configs()[name].read_text()
    settings = resolve(f"configs/{name}.toml")
    assert settings.dataset in {*data.DATASETS, *data.FILE_DATASETS}
    assert settings.backbone in backbones.BACKBONES
    header = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    assert re.search(rf"vri train configs/{name}\.toml .*--out runs/{name}", header)
    assert re.search(r"tab:\w+ of the paper", header.splitlines()[0])
    assert re.search(r"Published \(VRI.*\): .*\d\d\.\d", header)
    assert "Expected time: " in header


def test_the_table_of_training_settings() -> None:
    """The paper's table of settings, column by column."""
    table = {  # k, batch, optimizer, lr, weight decay, epochs
        "cifar10_flip_resnet32": (2, 100, "sgd", 0.02, 5e-4, 160),
        "cifar100_uniform": (2, 100, "sgd", 0.02, 5e-4, 160),
        "clothing1m": (1, 128, "sgd", 0.02, 5e-4, 10),
        "food101n": (1, 128, "adam", 3e-4, 0.0, 30),
    }
    for name, expected in table.items():
        s = resolve(name)
        samples = {**PAPER, **s.options}["samples"]
        assert (samples, s.batch_size, s.optimizer, s.lr, s.weight_decay, s.epochs) == expected


# the sets


def test_every_method_gets_the_same_split_and_labels() -> None:
    first, second = prepare(small()), prepare(small(method="cross-entropy", options={}))
    for a, b in zip(first.train, second.train, strict=True):
        assert torch.equal(a, b)
    parts = [set(index.tolist()) for index in first.split.values()]
    assert sum(map(len, parts)) == len(set().union(*parts))


def test_noise_is_that_of_the_whole_training_part() -> None:
    images = data.load("digits")
    whole = noise.flip(None, images.train_y, num_classes=10, rate=0.4, seed=0)
    sets = prepare(small())
    index = sets.split["train"]
    assert torch.equal(sets.train[1], whole.labels[index])
    assert torch.equal(sets.true_labels, images.train_y[index])
    assert torch.equal(sets.clean[1], images.train_y[sets.split["clean"]])


def test_a_noise_file_gives_the_same_labels(tmp_path: Path) -> None:
    assert main(["noise", "digits", "--type", "flip", "--rate", "0.4", "--out", str(tmp_path / "n.npz")]) == 0
    from_file, drawn = prepare(small(noise=str(tmp_path / "n.npz"))), prepare(small())
    assert torch.equal(from_file.train[1], drawn.train[1])
    assert from_file.noise is not None
    assert drawn.noise is not None
    assert from_file.noise.hash == drawn.noise.hash


def test_a_split_file_gives_the_same_samples(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, record = finished
    sets = prepare(small(split=str(out / "split.npz"), clean=0, limit=None))
    assert split_hash(sets.split) == record["split_hash"]
    assert torch.equal(sets.train[0], prepare(small()).train[0])
    save_split(tmp_path / "far.npz", {"train": torch.tensor([5000]), "clean": torch.tensor([1]), "validation": EMPTY})
    with pytest.raises(SettingsError, match="names sample 5000, but the training part has 1437"):
        prepare(small(split=str(tmp_path / "far.npz")))
    save_split(tmp_path / "other.npz", {"a": torch.tensor([1])})
    with pytest.raises(SettingsError, match="has the parts a; expected clean, validation and train"):
        prepare(small(split=str(tmp_path / "other.npz")))


def fake_images(classes: int, count: int, **more: Any) -> ImageData:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
    y = torch.arange(count) % classes
    names = tuple(str(k) for k in range(classes))
    return ImageData("fake", x, y, x[:10], y[:10], names, (0.5,) * 3, (0.5,) * 3, **more)


def test_human_labels_are_a_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    images = fake_images(4, 80, human_labels={"worse": torch.arange(80) % 3})
    monkeypatch.setattr(preparation.data, "load", lambda name, root: images)
    sets = prepare(small(noise="worse", clean=8, limit=None))
    assert torch.equal(sets.train[1], (torch.arange(80) % 3)[sets.split["train"]])
    with pytest.raises(SettingsError, match=r"noise='best': expected none, a file written by `vri noise`, or one of"):
        prepare(small(noise="best"))


@pytest.mark.parametrize("limit", [None, 50])
def test_open_set_images_go_to_training_only(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fake_images(5, 100)
    strange = whole.train_y == 4
    images = ImageData(
        "fake",
        whole.train_x,
        whole.train_y,
        whole.test_x,
        whole.test_y,
        tuple("0123"),
        (0.5,),
        (0.5,),
        open_set=strange,
    )
    monkeypatch.setattr(preparation.data, "load", lambda name, root: images)
    sets = prepare(small(noise="open-uniform", clean=8, limit=limit))
    assert not strange[sets.split["clean"]].any()
    assert int(strange[sets.split["train"]].sum()) == (20 if limit is None else 10)
    assert len(sets.split["train"]) == (92 if limit is None else 50)
    assert int(sets.train[1].max()) < 4
    with pytest.raises(SettingsError, match="its out-of-distribution images have no right label"):
        prepare(small(noise="none", clean=8))


def test_augmentation_is_that_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = prepare(small())
    assert plain.transform == plain.test_transform
    strong = prepare(small(augment="rand-augment"))
    assert strong.transform is not None
    assert strong.meta_transform is not None
    assert (strong.transform.rand_augment, strong.meta_transform.rand_augment) == (2, 0)
    assert strong.meta_transform.flip
    assert strong.test_transform == plain.test_transform


# the run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("runs") / "a"
    return out, train_run(small(), out, progress=False)


def test_what_a_run_leaves(finished: tuple[Path, dict[str, Any]]) -> None:
    out, record = finished
    assert {p.name for p in out.iterdir()} == {
        "record.json",
        "history.jsonl",
        "checkpoint.pt",
        "checkpoint.previous.pt",
        "split.npz",
        "classifier.safetensors",
    }
    written = json.loads((out / "record.json").read_text())
    assert written == json.loads(json.dumps(record))
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert written["epochs"] == rows
    scores = [row["test_accuracy"] for row in rows]
    assert written["finished"] is True
    assert written["last"] == scores[-1]
    assert written["last_10_mean"] == pytest.approx(sum(scores) / 2)
    assert written["best_chosen_on_test"] == max(scores)
    assert written["settings"] == small().as_dict()
    assert written["noise_rate"] == pytest.approx(0.4, abs=0.05)
    assert len(written["noise_hash"]) == len(written["split_hash"]) == 64
    assert written["versions"]["torch"] == torch.__version__
    assert written["seconds"] > 0
    assert written["peak_memory_mb"] > 10


def test_the_classifier_loads_into_a_plain_module(finished: tuple[Path, dict[str, Any]]) -> None:
    """Without vri: a module of the same layers gives the accuracy that the record has."""
    out, record = finished
    with safe_open(out / "classifier.safetensors", "pt") as file:
        about = file.metadata()
    assert about["backbone"] == "mlp"
    images = data.load("digits")
    nn = torch.nn
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    model.load_state_dict(load_file(out / "classifier.safetensors"))
    mean, std = json.loads(about["mean"])[0], json.loads(about["std"])[0]
    x = (images.test_x / 255 - mean) / std
    with torch.no_grad():
        right = (model(x).argmax(1) == images.test_y).double().mean()
    assert float(right) == record["last"]


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    dropped = ("seconds", "started", "peak_memory_mb", "commit")
    kept = {k: v for k, v in record.items() if k not in dropped}
    kept["epochs"] = [{k: v for k, v in row.items() if k != "seconds"} for row in record["epochs"]]
    return kept


def test_an_interrupted_run_goes_on_to_the_same_record(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vri.methods import VRI

    original, done = VRI.step, 0

    def step(self: VRI, batch: Any, meta_batch: Any = None) -> dict[str, float]:
        nonlocal done
        if done == 3:
            raise KeyboardInterrupt
        done += 1
        return original(self, batch, meta_batch)

    monkeypatch.setattr(VRI, "step", step)
    with pytest.raises(KeyboardInterrupt):
        train_run(small(), tmp_path / "b", progress=False)
    monkeypatch.setattr(VRI, "step", original)
    assert json.loads((tmp_path / "b" / "record.json").read_text())["finished"] is False
    record = train_run(small(), tmp_path / "b", resume=True, progress=False)
    assert without_times(record) == without_times(finished[1])
    again = train_run(small(), tmp_path / "b", resume=True, progress=False)  # of a finished run: nothing happens
    assert without_times(again) == without_times(finished[1])


def test_a_run_is_not_overwritten_or_mixed_up(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, _ = finished
    with pytest.raises(SettingsError) as error:
        train_run(small(), out)
    assert str(error.value) == (
        f"{out} holds a run already, 2 epochs done; add --resume to continue it, or give another --out"
    )
    with pytest.raises(SettingsError) as error:
        train_run(small(lr=0.5, seed=1), out, resume=True)
    assert str(error.value) == (
        f"{out} holds another run: lr was 0.02 and is 0.5; seed was 0 and is 1; use the same settings to resume, "
        "or another --out"
    )


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a"
    arguments = ["train", "--dataset", "digits", "--noise", "flip", "--rate", "0.3", "--epochs", "1", "--limit", "100"]
    arguments += ["--method", "cross-entropy", "--out", str(out), "clean=10"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^cross-entropy on digits \(\d\d\.\d% of labels wrong\), mlp, 1 epochs$", printed, re.MULTILINE)
    assert re.search(r"^test accuracy \d+\.\d\d % in the last epoch", printed, re.MULTILINE)
    assert main(["train", "--resume", "--out", str(out)]) == 0  # the settings are those of the record
    assert list(out.glob("events.out.tfevents.*"))


def test_selected_samples_join_clean_ones(tmp_path: Path) -> None:
    record = train_run(small(join_selected=True, epochs=3), tmp_path / "a", progress=False)
    assert record["sizes"]["clean"] > 0
    assert "selected" in record["epochs"][-1]
    with pytest.raises(SettingsError, match="join_selected=true with selection='two-phase': expected one of balanced"):
        resolve(None, {}, ["join_selected=true", "selection=two-phase"])


def test_without_clean_samples_the_system_selects_its_own(tmp_path: Path) -> None:
    record = train_run(small(clean=0, epochs=3, selection="balanced"), tmp_path / "a", progress=False)
    assert "selection_purity" in record["epochs"][-1]
    with Image.open(tmp_path / "a" / "selection.png") as picture:
        assert min(picture.size) > 400
    assert record["sizes"]["clean"] == 0
    with pytest.raises(SettingsError, match="method clean-only learns from clean samples, but clean=0"):
        train_run(small(clean=0, method="clean-only", options={}), tmp_path / "b")


def test_two_phases(tmp_path: Path) -> None:
    """The clean samples are the smallest losses of each class of a first network, and leave the training set."""
    settings = small(clean=0, selection="two-phase", selection_size=40, first_epochs=2)
    record = train_run(settings, tmp_path / "a", progress=False)
    assert record["sizes"] == {"clean": 40, "validation": 0, "train": 160}
    assert 0.5 < record["selection"]["selection_purity"] <= 1
    sets = prepare(settings)
    first = backbones.build("mlp", num_classes=10, in_channels=1, image_size=8, seed=0)
    first.load_state_dict(load_checkpoint(tmp_path / "a" / "first" / "checkpoint.pt")["method"]["model"])
    with torch.no_grad():
        x = sets.test_transform(sets.train[0])  # type: ignore[misc]
        losses = torch.nn.functional.cross_entropy(first(x), sets.train[1], reduction="none")
    chosen = balanced(losses.double(), sets.train[1], 10, 40)
    right = (sets.train[1] == sets.true_labels)[chosen].double().mean()
    assert record["selection"]["selection_purity"] == pytest.approx(float(right))
    again = train_run(settings, tmp_path / "a", resume=True, progress=False)
    assert without_times(again) == without_times(record)


def test_two_phases_when_the_first_network_selects_no_sample_of_a_class(tmp_path: Path) -> None:
    """Five samples of ten classes: the second network learns from those, and the user hears of it."""
    said: list[str] = []
    settings = small(clean=0, selection="two-phase-smallest", selection_size=5, first_epochs=2)
    record = train_run(settings, tmp_path, progress=False, on_remark=said.append)
    assert record["finished"]
    assert record["sizes"]["clean"] == 5
    assert record["selection"]["selected_classes"] <= 5
    assert "none of label" in record["selection"]["remark"]
    assert f"selected by the first network: {record['selection']['remark']}" in said


# images in files


def picture(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (20, 24, 3), generator=generator, dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(path)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    rows = []
    for number in range(24):
        name = f"images/{number}.png"
        picture(tmp_path / name, number)
        part = "test" if number >= 20 else "train"
        rows.append([name, "cat" if number % 2 else "dog", "yes" if number < 4 else "no", part])
    with open(tmp_path / "list.csv", "w", newline="") as file:
        csv.writer(file).writerows([["path", "label", "trusted", "split"], *rows])
    return tmp_path / "list.csv"


FILES = ["--backbone", "small_cnn", "--epochs", "1", "image_size=12", "batch_size=6", "tensorboard=false"]
FILES += ["options.hidden=[8]", "options.label_dim=4"]


def test_a_manifest_with_trusted_rows(manifest: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["train", "--dataset", str(manifest), "--out", str(out), *FILES]) == 0
    record = json.loads((out / "record.json").read_text())
    assert record["sizes"] == {"validation": 0, "train": 16}
    assert record["last"] is not None
    assert record["classes"] == 2


def test_a_broken_image_is_fatal_or_skipped(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    broken = tmp_path / "images" / "7.png"
    broken.write_bytes(broken.read_bytes()[:60])
    arguments = ["train", "--dataset", str(manifest), *FILES]
    assert main([*arguments, "--out", str(tmp_path / "a")]) == 2
    assert "7.png" in capsys.readouterr().err
    assert main([*arguments, "--out", str(tmp_path / "b"), "broken_images=skip"]) == 0


# bad input: one line, exit code 2, nothing left behind


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "cifar1"], "did you mean 'cifar10'?"),
        (["--dataset", "digits", "--rate", "2", "--noise", "flip"], "rate=2.0: expected a share from 0 to 1"),
        (["--dataset", "digits", "clean=5000"], "ask for smaller parts"),
        (["--dataset", "digits", "--backbone", "resnet31"], "resnet3"),
        (["--dataset", "digits", "--noise", "flop"], "noise='flop': expected none"),
        (["--dataset", "digits", "--device", "warp"], "device='warp' can't be used"),
        (["--dataset", "cifar100", "--root", "/nowhere"], "/nowhere"),
        (["no-such.toml"], "there is no file no-such.toml"),
        (["--dataset", "digits", "--noise", "missing.npz"], "there is no file missing.npz"),
    ],
)
def test_mistakes(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    clean = [] if "clean=5000" in arguments or "no-such.toml" in arguments else ["clean=100"]
    assert main(["train", *arguments, *clean, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vri train: ")
    assert message in error
    assert not out.exists()


def test_out_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dataset", "digits"]) == 2
    assert "--out is missing" in capsys.readouterr().err


def test_list_of_configurations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(configs())
