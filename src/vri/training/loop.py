"""The training loop: learning rate, evaluation, history, and checkpoints that resume a run exactly."""

import math
import signal
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vri.core import share
from vri.core.checks import check_labels, check_meta_labels
from vri.core.model import modes_restored, set_rate
from vri.core.randomness import derive_seed
from vri.data.augment import mixup as mix
from vri.data.batches import Batches, Data, Transform, length, read_labels
from vri.methods.base import Method
from vri.training import distributed
from vri.training.early_stopping import KeepBest
from vri.training.evaluation import evaluate, memorisation
from vri.training.progress import Reporter, Row, check_tensorboard, say_nothing, tensorboard_writer
from vri.training.selection import Selection
from vri.training.state import History, RunState
from vri.training.streams import Streams
from vri.training.trusted import GivenSamples, SelectedSamples

__all__ = ["SCHEDULES", "History", "KeepBest", "evaluate", "train"]

Schedule = Callable[[float], float]

SCHEDULES: dict[str, Schedule] = {
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1 - progress,
    "constant": lambda progress: 1.0,
}

_MIXUP_STREAM = 2  # derives the seeds of mixup from that of the run


def train(
    method: Method,
    train_set: Data,
    meta_set: Data | None = None,
    *,
    epochs: int,
    selection: Selection | None = None,
    warm_up: int = 0,
    mixup: float = 0.0,
    batch_size: int = 100,
    meta_batch_size: int | None = None,
    test_set: Data | None = None,
    validation_set: Data | None = None,
    true_labels: Tensor | None = None,
    evaluate_every: int = 1,
    schedule: str | Schedule = "cosine",
    seed: int = 0,
    out: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = True,
    progress: bool = True,
    num_workers: int = 0,
    transform: Transform | None = None,
    strong_transform: Transform | None = None,
    meta_transform: Transform | None = None,
    test_transform: Transform | None = None,
    log_tensorboard: bool = False,
    on_epoch: Callable[[Row], None] | None = None,
    on_remark: Callable[[str], None] | None = None,
    keep_best: KeepBest | None = None,
    every_class: bool = True,
) -> History:
    """Train `method` and return one row of numbers per epoch.

    With `out`, a run may be killed at any moment: the same call resumes it and ends with the same weights, bit by bit,
    as an uninterrupted run. Afterwards the optimizer's learning rates and the modes of the model's layers are as
    before.

    After `vri.training.distributed.start` all workers must make the same call. They train one model: batch sizes count
    the samples of all workers together, and the first worker writes and reports.

    Args:
        method: what to train; to resume a run, build it in the same way.
        train_set: noisy samples: a tuple of tensors (inputs, labels), or a map-style data set of such pairs.
        meta_set: trusted samples, for methods that use them; read in cycles. Without them, methods that can do so learn
            from training samples that are selected again in each epoch (Algorithm 2).
        epochs: passes through `train_set`, including the warm-up.
        selection: how these samples are selected; `Selection()` if not given. Together with a meta_set, every trusted
            batch also contains selected samples.
        warm_up: epochs of plain cross-entropy before the method learns from its meta_set, for methods that can also
            work without one. Set those before a selection by `Selection(warm_up=...)`.
        mixup: mix noisy samples with each other, and trusted ones with each other, with shares from Beta(mixup, mixup),
            within a worker's rows; 0 mixes nothing. Use this to add mixup to any method; `Mixup` is a method itself.
        batch_size: noisy samples per step, of all workers together.
        meta_batch_size: trusted samples per step; as many as noisy ones if not given.
        test_set: evaluated after every epoch, see `evaluate_every`.
        validation_set: likewise.
        true_labels: right labels of `train_set` in its order, where known: rows then have `memorised` and
            `corrected`, the shares of wrongly labelled samples predicted as their wrong and right label.
        evaluate_every: epochs from one evaluation on these three to the next; the last epoch is always evaluated. It
            doesn't change the training.
        schedule: factor on the learning rates: a name in `SCHEDULES`, or a function of the share of training
            done.
        seed: of the order of the batches and random transforms in the data sets; the method draws the rest.
        out: folder for `history.jsonl` and `checkpoint.pt`; nothing is written without it.
        checkpoint_every: steps between checkpoints. If not given, one is written after each epoch, or after several if
            they are short, so that saving takes no more than a twentieth of the time. The last step is always saved.
        resume: continue from the checkpoint in `out`, if there is one; False deletes it and starts over.
        progress: show a bar, or one line per epoch where stderr is not a terminal.
        num_workers: processes that load data sets which are not in memory.
        transform: applied to the inputs of a training batch on the model's device: a function of the inputs and the
            batch's own seed, such as `vri.data.Augment`. Only for sets in memory.
        strong_transform: likewise for the strong view of methods that have one; the same as `transform` if not given.
        meta_transform: likewise for trusted batches; the same as `transform` if not given.
        test_transform: likewise wherever the model is evaluated.
        log_tensorboard: write the rows as TensorBoard events to `out` as well.
        on_epoch: called with each new row, after it was saved; only on the first worker.
        on_remark: called with remarks for the user, such as a class without a selected sample; printed on stderr if not
            given.
        keep_best: end with the weights of the best epoch on `validation_set`, and stop when accuracy gets clearly
            worse; the last row then has `kept_epoch`. Otherwise end with the last epoch.
        every_class: refuse a meta_set that lacks a class. Pass False for a selected one, which may lack some.
    """
    _check_counts(
        epochs=epochs,
        batch_size=batch_size,
        meta_batch_size=meta_batch_size,
        checkpoint_every=checkpoint_every,
        evaluate_every=evaluate_every,
    )
    if keep_best is not None and evaluate_every != 1:
        raise ValueError(f"keep_best with evaluate_every={evaluate_every}: it compares all epochs; leave one out")
    if isinstance(schedule, str) and schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r}: expected one of {', '.join(SCHEDULES)}, or a function")
    if log_tensorboard:
        if out is None:
            raise ValueError("log_tensorboard=True needs a folder for the events; pass out= as well")
        check_tensorboard()
    evaluated = {"test": test_set, "validation": validation_set}
    if selection is not None and not method.can_select:
        raise ValueError(f"selection was given for {type(method).__name__}, which can't use it; leave selection out")
    _check_warm_up(warm_up, epochs, method, meta_set, selection)
    if mixup < 0:
        raise ValueError(f"mixup={mixup}: expected 0 or more; 0 mixes nothing")
    if keep_best is not None and validation_set is None:
        raise ValueError("keep_best was given without a validation_set to tell which epoch is best; pass one")
    labels, meta_labels = _check_sets(method, train_set, meta_set, every_class, evaluated, true_labels)
    meta_batch_size = batch_size if meta_batch_size is None else meta_batch_size
    rates = [float(group["lr"]) for group in method.optimizer.param_groups]
    settings = {
        "method": type(method).__name__,
        "epochs": epochs,
        "batch_size": batch_size,
        "meta_batch_size": meta_batch_size,
        "learning rates": rates,
        "mixup": mixup,
        "schedule": schedule if isinstance(schedule, str) else getattr(schedule, "__qualname__", "function"),
        "seed": seed,
        "training samples": length(train_set),
        "meta samples": None if meta_set is None else length(meta_set),
        "checksum of the training labels": _checksum(labels),
        "checksum of the meta labels": _checksum(meta_labels),
        **method.settings(),
    }
    factor = SCHEDULES[schedule] if isinstance(schedule, str) else schedule

    device = next(method.model.parameters()).device
    where: dict[str, Any] = {"num_workers": num_workers, "device": device}
    divided = {**where, "divide": True}
    views = {"weak": transform, "strong": strong_transform or transform}
    noisy = Batches(
        train_set,
        batch_size,
        seed=seed,
        views=[views[name] for name in method.views],
        with_index=method.needs_index,
        **divided,
    )
    trusted: GivenSamples | SelectedSamples | None = None
    given = all_trusted = None
    after = {"transform": meta_transform or transform}
    if meta_set is not None:
        trusted = given = GivenSamples(meta_set, meta_batch_size, seed, warm_up, **after, **divided)
        in_order = {"seed": 0, "shuffle": False, "drop_last": False, "transform": test_transform, **where}
        all_trusted = partial(Batches(meta_set, meta_batch_size, **in_order).epoch, 0)
    if method.can_select and (meta_set is None or selection is not None):
        trusted = SelectedSamples(
            method,
            train_set,
            selection or Selection(),
            epochs,
            meta_batch_size,
            seed,
            given=given,
            true_labels=true_labels,
            test_transform=test_transform,
            **after,
            **divided,
        )
    settings |= {} if trusted is None else trusted.settings()
    method.begin_training(noisy.size, all_trusted)
    folder = None if out is None else distributed.on_first(partial(_folder, out))
    run = RunState(method, epochs * len(noisy), len(noisy), settings, folder)
    method.data = Streams(
        run, method, train_set, batch_size, seed, views=views, test_transform=test_transform, **divided
    )

    with ExitStack() as stack:
        stack.enter_context(_rates_restored(method.optimizer))
        stack.enter_context(modes_restored(method.predictor))
        run.open(resume)
        _begin_alike(method)
        writer = None
        if log_tensorboard and run.folder is not None and distributed.first():
            writer = stack.enter_context(tensorboard_writer(run.folder))
        reporter = stack.enter_context(
            Reporter(progress and distributed.first(), run.total, run.at.step, epochs, writer)
        )
        reporter.replay(run.at.history)
        say = (on_remark or reporter.say) if distributed.first() else say_nothing
        stop = stack.enter_context(_interrupts_wait())
        noisy_batches = noisy.endless(run.at.step)
        how: dict[str, Any] = {"num_workers": num_workers, "transform": test_transform}
        how["autocast"] = method.classifier.autocast
        method.predictor.train()
        begun = -1  # the last epoch that the method was told about
        remarked: set[str] = set()
        try:
            while run.at.step < run.total and not (keep_best and keep_best.enough(run.at)):
                epoch = run.at.step // run.per_epoch
                if epoch != begun:
                    method.begin_epoch(epoch, epochs)
                    if run.at.surveyed != epoch:
                        method.survey(epoch)
                        run.at.surveyed = epoch
                    remark = None if trusted is None else trusted.begin_epoch(epoch, run.at)
                    if remark is not None and remark not in remarked:
                        say(f"epoch {epoch + 1}: {remark}")
                        remarked.add(remark)
                    begun = epoch
                scale = method.lr_scale(run.at.step / run.total, factor)
                for group, rate in zip(method.optimizer.param_groups, rates, strict=True):
                    set_rate(group, rate * scale)

                batch, meta_batch = next(noisy_batches), None
                warming_up = trusted is not None and epoch < trusted.warm_up
                if trusted is not None and method.meta_due and not warming_up:
                    meta_batch = trusted.draw(run.at)
                if mixup:
                    seeds = [derive_seed(seed, _MIXUP_STREAM, run.at.step, which) for which in (0, 1)]
                    batch = _mixed(batch, method.num_classes, mixup, seeds[0])
                    if meta_batch is not None:
                        meta_batch = _mixed(meta_batch, method.num_classes, mixup, seeds[1])
                reporter.step(run.step(batch, meta_batch, warming_up))

                row = None
                if run.at.step % run.per_epoch == 0:
                    distributed.merge(method.memories.values())
                    scores: Row = {}
                    if run.at.step == run.total or (epoch + 1) % evaluate_every == 0:
                        for name, data in evaluated.items():
                            if data is not None:
                                result = evaluate(method.predictor, data, divide=True, **how)
                                scores |= {f"{name}_{key}": value for key, value in result.items()}
                        if true_labels is not None:
                            scores |= memorisation(method.predictor, train_set, true_labels, **how)
                    if trusted is not None and not warming_up:
                        scores |= trusted.scores(run.at)
                    row = run.end_epoch(scores)
                    if keep_best is not None and validation_set is not None:
                        keep_best.note(row, method.predictor, run.at, length(validation_set))
                due = run.due(checkpoint_every)
                stopping = distributed.anywhere(stop.is_set())  # then all stop after the same step
                if due or stopping:
                    run.save()
                if row is not None:
                    run.append(row)
                    reporter.epoch(row)
                    if on_epoch is not None and distributed.first():
                        on_epoch(dict(row))
                if stopping:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            say(run.how_to_go_on())
            raise
    run.save_rest()  # of a run that ended early
    if keep_best is not None and validation_set is not None:
        keep_best.restore(method.predictor, run.at, length(validation_set))
    return run.at.history


def _check_counts(**counts: int | None) -> None:
    wrong = [f"{name}={value!r}" for name, value in counts.items() if value is not None and value < 1]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: expected 1 or more; correct the setting")


def _check_warm_up(
    warm_up: int, epochs: int, method: Method, meta_set: Data | None, selection: Selection | None
) -> None:
    if not 0 <= warm_up < epochs:
        raise ValueError(f"warm_up={warm_up} of {epochs} epochs: expected 0 or more, and fewer than all; correct it")
    if not warm_up:
        return
    if not method.can_select:
        raise ValueError(f"warm_up={warm_up} for {type(method).__name__}, which has no warm-up; leave it out")
    if meta_set is None or selection is not None:
        raise ValueError(f"warm_up={warm_up} before a selection: expected it there; pass Selection(warm_up={warm_up})")


def _check_sets(
    method: Method,
    train_set: Data,
    meta_set: Data | None,
    every_class: bool,
    evaluated: dict[str, Data | None],
    true_labels: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Refuse unusable sets; return the labels of the training and the trusted set, if they are cheap to read."""
    for name, data in {"training": train_set, **evaluated}.items():
        if data is not None and length(data) == 0:
            raise ValueError(f"the {name} set is empty: expected at least one sample; check it and its filter")
    if method.needs_trusted and meta_set is None and not method.can_select:
        raise ValueError(
            f"{type(method).__name__} learns from clean samples, but meta_set is None: expected "
            "(inputs, labels) with at least one sample of each class; pass meta_set="
        )
    if true_labels is not None and len(true_labels) != length(train_set):
        raise ValueError(
            f"true_labels has {len(true_labels)} labels for {length(train_set)} training samples; "
            "expected one for each, in the order of the training set"
        )
    labels = read_labels(train_set)
    if labels is not None:
        check_labels(labels.cpu(), method.num_classes, "training")
    meta_labels = None
    if meta_set is not None:
        empty = length(meta_set) == 0
        meta_labels = torch.empty(0) if empty else read_labels(meta_set, go_through=True)
        if meta_labels is not None:
            check_meta_labels(meta_labels.cpu(), method.num_classes, every_class)
    return labels, meta_labels


def _mixed(batch: Any, num_classes: int, alpha: float, seed: int) -> Any:
    """A batch with inputs and labels mixed; its other parts stay."""
    inputs, labels, *rest = batch
    if not isinstance(inputs, Tensor):
        raise TypeError(f"mixup of inputs that are a {type(inputs).__name__}: expected one tensor; pass mixup=0")
    generator = torch.Generator().manual_seed(share.current().seed(seed))
    return (*mix(inputs, labels, num_classes, alpha, generator), *rest)


def _begin_alike(method: Method) -> None:
    """Give all workers the first worker's networks and generator."""
    modules = [part for part in vars(method).values() if isinstance(part, nn.Module)]
    distributed.copy_from_first(t for m in modules for t in (*m.parameters(), *m.buffers()))
    generator = getattr(method, "generator", None)
    if distributed.world() > 1 and isinstance(generator, torch.Generator):
        generator.set_state(distributed.on_first(generator.get_state))


def _checksum(labels: Tensor | None) -> str | None:
    if labels is None:
        return None
    numbers = labels.cpu().double().contiguous().numpy()
    return f"{zlib.crc32(numbers.tobytes()):08x}"


def _folder(out: str | Path) -> Path:
    """The folder `out`, created if necessary and tested by writing."""
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"out={str(out)!r} is a file, expected a folder; give another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"out={str(out)!r} can't be written to ({error.strerror}); expected a folder that can: "
            "give another one, or change its permissions"
        ) from None
    return folder


@contextmanager
def _rates_restored(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Restore the learning rates, so that a second call doesn't start from the end of a schedule."""
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            set_rate(group, rate)


@contextmanager
def _interrupts_wait() -> Iterator[threading.Event]:
    """Let the first Ctrl-C only set the event, so that the step is finished and saved; a second one stops at once.

    Does nothing if the signal is not ours to handle: in another thread, or if the user has a handler.
    """
    stop = threading.Event()
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not ours:
        yield stop
        return

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            signal.default_int_handler(number, frame)
        stop.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
