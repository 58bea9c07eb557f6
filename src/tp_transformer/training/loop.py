"""The training loop.

A step depends only on the weights, the seed and its number, which determine its samples (`Feed`)
and its random numbers. A run resumed from a checkpoint therefore computes exactly what it would
have computed without interruption, and several ranks use the same samples as one.
"""

import math
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tp_transformer.data.sampling import Feed, Prefetcher
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.ranges import (
    OpenShare,
    Positive,
    PositiveInt,
    Seed,
    ShareBelowOne,
    check_fields,
)
from tp_transformer.runtime.files import write_json
from tp_transformer.runtime.ranks import Ranks, native_precision
from tp_transformer.runtime.signals import NUMBERS
from tp_transformer.training import checkpoint
from tp_transformer.training.checkpoint import AnyModel, Best, Standing, State
from tp_transformer.training.gradient import Gradient, summed
from tp_transformer.training.limits import Limits, RecentSpeed, seconds
from tp_transformer.training.local_batch import LocalBatch
from tp_transformer.training.metrics import Recorder
from tp_transformer.training.optim import (
    Ema,
    OptimConfig,
    clip,
    learning_rate,
    make_optimizer,
    set_learning_rate,
)
from tp_transformer.training.records import MONITOR, TRAIN, VALIDATION
from tp_transformer.training.signals import Signals
from tp_transformer.training.validate import LocalQuestions, Score, ValidationConfig, validate

BAD_BATCH = "bad_batch.json"
SECONDS_BETWEEN_VIEWS = 1.0  # of the averages of a window that is not complete yet


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Duration, precision and checkpoints of training; the defaults are those of Schlag et al.

    Attributes:
        steps: maximum number of steps; absent: no limit
        epochs: maximum number of passes over the training rows; absent: no limit
        budget: maximum training time, such as 90s, 45min, 2h or 1d12h; absent: no limit
        seed: of the initial weights, the order of the samples and dropout
        precision: of matrix products; weights and optimizer state stay in float32, and so do
            products where bfloat16 would be emulated
        label_smoothing: probability mass distributed evenly over all tokens
        ema: decay of the moving average of the weights that is validated and saved; absent: none
        symbols_per_pass: maximum number of tokens in a micro-batch; gradients are accumulated over
            the micro-batches of a batch
        patience: number of validations without improvement before the run stops; absent: no limit
        max_bad_steps: number of consecutive steps with a loss or gradient that is not finite before
            the run stops
        log_every: number of steps between lines of metrics
        checkpoint_minutes: time between checkpoints
        checkpoint_every: number of steps between additional checkpoints
        keep: number of newest checkpoints to keep
        keep_every: number of steps between checkpoints that are kept permanently; absent: none
    """

    steps: PositiveInt | None = 1_000_000
    epochs: Positive | None = None
    budget: str | None = None
    seed: Seed = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    label_smoothing: ShareBelowOne = 0.0
    ema: OpenShare | None = None
    symbols_per_pass: PositiveInt = 16_384
    patience: PositiveInt | None = None
    max_bad_steps: PositiveInt = 10
    log_every: PositiveInt = 20
    checkpoint_minutes: Positive = 10.0
    checkpoint_every: PositiveInt | None = None
    keep: PositiveInt = 2
    keep_every: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.steps is None and self.epochs is None and self.budget is None:
            raise SettingsError("a run needs an end: set steps, epochs or budget")
        if self.budget is not None:
            seconds(self.budget)


class Loop:
    """A run in progress: the model, its optimizer and the state of training."""

    def __init__(
        self,
        model: AnyModel,
        feed: Feed,
        run: Path,
        ranks: Ranks,
        *,
        optim: OptimConfig,
        training: TrainingConfig,
        validation: ValidationConfig,
        monitor: LocalQuestions | None = None,
    ) -> None:
        self.model, self.feed, self.run_folder, self.ranks = model, feed, run, ranks
        self.optim, self.training, self.validation = optim, training, validation
        self.monitor = monitor
        self.optimizer = make_optimizer(model, optim)
        self.ema = None if training.ema is None else Ema(model, training.ema)
        self.state = State()
        self._gradient = Gradient(model, ranks, training.seed, training.label_smoothing)
        self._metrics = Recorder()
        self._signals = Signals()
        self.limits = Limits(
            steps=training.steps,
            epochs=training.epochs,
            budget=None if training.budget is None else seconds(training.budget),
            batch_size=feed.sampler.batch_size,
            n_rows=len(feed.sampler),
        )
        self._speed = RecentSpeed()
        self._shown_at = -math.inf
        self._can_validate = len(feed.held_out_rows) > 0 or monitor is not None
        self.precision = native_precision(training.precision, ranks.device)
        self._layout = model.layout_for(ranks.device, getattr(torch, self.precision))
        self._bad_in_a_row = 0
        self._checkpoint_owed = False
        self._saved_step: int | None = None
        self._saved_validation: int | None = None
        self._saved_at = 0.0

    def restore(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of a checkpoint."""
        checkpoint.restore(tensors, self.model, self.optimizer, self.ema)
        self.state = state
        if self.progress < 1:
            state.forget_end()  # of a run that has been extended
        self._saved_step, self._saved_at = state.step, state.elapsed
        self._saved_validation = state.validated

    def run(self, metrics: Recorder) -> int | None:
        """Train to the end and return None, or until a signal is received and return its number."""
        self._metrics = metrics
        self._start()
        with self._signals, Prefetcher(self._local_batch, first=self.state.step) as prefetcher:
            while True:
                if self._validation_due():
                    self._validate()
                if self.ended:
                    break
                if self._checkpoint_due():
                    self._save()
                stopped = self._step(prefetcher)
                if stopped is not None:
                    self._stop(stopped)
                    return stopped
            self._save()  # inside the context, so that a signal cannot interrupt it
        return None

    def measure(self, at_least: float) -> float:
        """Take steps for some seconds without recording them; return the seconds of a step.

        The first step is not counted. The model is changed in memory only.
        """
        self._start()
        with Prefetcher(self._local_batch, first=self.state.step) as prefetcher:
            self._step(prefetcher)
            step, elapsed = self.state.step, self.state.elapsed
            while self.state.step == step or self.state.elapsed - elapsed < at_least:
                self._step(prefetcher)
        return (self.state.elapsed - elapsed) / (self.state.step - step)

    def _start(self) -> None:
        self._started = time.monotonic() - self.state.elapsed
        self._speed.add(self.state.elapsed, self.state.step)
        self.model.train()
        self._gradient.distribute()

    @property
    def progress(self) -> float:
        """The completed share of the run, from 0 to 1."""
        return self.limits.progress(self.state.step, self.state.elapsed)

    @property
    def epoch(self) -> float:
        """The number of samples trained on, divided by the number of training rows."""
        return self.feed.sampler.epoch(self.state.step)

    @property
    def ended(self) -> bool:
        """Whether a limit of the run is reached."""
        patience = self.training.patience
        return self.progress >= 1 or (patience is not None and self.state.stale >= patience)

    @property
    def finished(self) -> bool:
        """Whether the run has ended and its final state is saved."""
        return self.ended and self._saved_step == self.state.step and not self._validation_due()

    def _local_batch(self, step: int) -> LocalBatch:
        rows = self.feed.tokens(step, self.ranks.rank, self.ranks.n_ranks)
        pad, limit = self.feed.vocabulary.pad, self.training.symbols_per_pass
        return LocalBatch.of(*rows, pad, limit, self._layout)

    def _step(self, prefetcher: Prefetcher[LocalBatch]) -> int | None:
        """Take one step, unless its loss or gradient is not finite; return a received signal.

        The clock of rank 0 and the signals of all ranks are summed with the metrics, so that all
        ranks continue alike. Reading these sums is the only synchronization with a GPU in a step,
        which is needed to decide whether the step is applied.
        """
        start, waited = time.monotonic(), prefetcher.waited
        local = prefetcher.next()
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            measured = self._gradient.accumulate(local, self.state.step, self._signals)
        if measured is None:
            return self._signals.received
        n_ranks = self.ranks.n_ranks
        measured["norm"] = clip(self.model.parameters(), self.optim) / n_ranks
        sums = summed(
            self.ranks,
            measured,
            {
                "rows": local.n_rows,
                "tokens": local.n_tokens,
                "symbols": local.n_symbols,
                "positions": local.n_positions,
                "waited": (prefetcher.waited - waited) / n_ranks,
                "clock": time.monotonic() - self._started if self.ranks.is_first else 0.0,
                **{str(number): self._signals.received == number for number in NUMBERS},
            },
        )
        rate = learning_rate(self.optim, self.state.step + 1, self.progress)
        is_good = math.isfinite(sums["loss"]) and math.isfinite(sums["norm"])
        if is_good:
            self._apply(rate)
        self.state.step += 1
        self.state.elapsed = sums["clock"]
        self._speed.add(self.state.elapsed, self.state.step)
        self._count(sums, time.monotonic() - start, is_good)
        self._log(rate)
        if not is_good:
            self._handle_nonfinite_step(sums)
        return next((number for number in NUMBERS if sums[str(number)]), None)

    def _apply(self, rate: float) -> None:
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        if self.state.step == 0:  # raises early if a checkpoint cannot hold the state
            dict(checkpoint.optimizer_tensors(self.model, self.optimizer))
        if self.ema is not None:
            self.ema.update(self.state.step + 1)

    def _count(self, sums: Mapping[str, float], duration: float, is_good: bool) -> None:
        """Add a step to the window that the next line of metrics averages."""
        window = self.state.window
        added = dict(zip(checkpoint.TIMES, (duration, sums["waited"]), strict=True))
        if is_good:
            added |= {"steps": 1, **{name: sums[name] for name in checkpoint.SUMS}}
            self._bad_in_a_row = 0
        for name, value in added.items():
            window[name] = window.get(name, 0) + value

    def _log(self, rate: float) -> None:
        """Record the averages of a window, after the first step too; show them in between."""
        if self.state.step == 1 or self.state.step % self.training.log_every == 0:
            values, self.state.window = self._averages(rate), {}
            if values is not None:
                self._record(values)
        elif self.ranks.is_first and time.monotonic() - self._shown_at >= SECONDS_BETWEEN_VIEWS:
            values = self._averages(rate)
            if values is not None:
                self._metrics.show(values)
            self._shown_at = time.monotonic()

    def _averages(self, rate: float) -> dict[str, Any] | None:
        """Return the averages since the last record; None if no step was applied."""
        sums = self.state.window
        if "steps" not in sums:
            return None
        state = self.state
        speed = self._speed.steps_per_second(state.elapsed, state.step)
        return {
            "kind": TRAIN,
            "step": state.step,
            "epoch": self.epoch,
            "loss": sums["loss"] / sums["tokens"],
            "exact_match": sums["right"] / sums["rows"],
            "learning_rate": rate,
            "gradient_norm": sums["norm"] / sums["steps"],
            "samples_per_second": sums["rows"] / sums["seconds"],
            "symbols_per_second": sums["symbols"] / sums["seconds"],
            "padding": 1 - sums["symbols"] / sums["positions"],
            "waiting": sums["waited"] / sums["seconds"],
            "skipped": state.skipped,
            "elapsed": state.elapsed,
            "progress": self.progress,
            "time_left": self.limits.time_left(state.step, state.elapsed, speed),
        }

    def _handle_nonfinite_step(self, sums: Mapping[str, float]) -> None:
        """Count a step that was not applied; stop the run if there are too many in a row."""
        self.state.skipped += 1
        self._bad_in_a_row += 1
        step, most = self.state.step, self.training.max_bad_steps
        what = f"loss {sums['loss'] / sums['tokens']:g}, gradient norm {sums['norm']:g}"
        self._say(
            f"step {step} is not applied: {what} "
            f"({self._bad_in_a_row} in a row; the run stops at {most})"
        )
        if self._bad_in_a_row >= most:
            self.ranks.first(self._write_bad_batch)
            raise UserError(
                f"{most} steps in a row had a loss or gradient that is not finite, the last one "
                f"step {step} ({what}); its questions are in {self.run_folder / BAD_BATCH}, and "
                f"{checkpoint.what_is_left(self.run_folder)}"
            )

    def _write_bad_batch(self) -> None:
        rows = self.feed.sampler.rows(self.state.step - 1)
        texts = zip(rows.tolist(), *self.feed.split.rows(rows), strict=True)
        found = [dict(zip(("row", "question", "answer"), one, strict=True)) for one in texts]
        write_json(self.run_folder / BAD_BATCH, {"step": self.state.step, "samples": found})

    def _validation_due(self) -> bool:
        step = self.state.step
        if not self._can_validate or not step or self.state.validated == step:
            return False
        return step % self.validation.every == 0 or self.ended

    def _validate(self) -> None:
        """Score the model on held-out questions, which select the best, and on monitored ones."""
        state = self.state
        is_due = state.step % self.validation.every == 0
        earlier = Standing(state.validated, state.best, state.stale)
        state.before_end = None if is_due else earlier
        state.validated = state.step
        self._checkpoint_owed |= self._saved_step == self.state.step
        with self._averaged(), self._autocast():
            if len(self.feed.held_out_rows):
                self._choose(self._score(self.feed.validation))
            if self.monitor is not None:
                score = self._score(self.monitor)
                self._record_score(MONITOR, score, split=self.feed.split.task.test_splits[0])

    def _score(self, questions: LocalQuestions) -> Score:
        share = questions(self.ranks.rank, self.ranks.n_ranks)
        limit = self.training.symbols_per_pass
        return validate(self.model, share, self.ranks, limit, self._layout)

    def _choose(self, score: Score) -> None:
        """Save the model if it is the best so far."""
        state = self.state
        is_better = _is_better(score, state.best)
        state.stale = 0 if is_better else state.stale + 1
        if is_better:
            self.ranks.first(lambda: checkpoint.save_best(self.run_folder, state.step, self.model))
            state.best = Best(state.step, score.exact_match, score.loss)
            self._checkpoint_owed = True  # the checkpoint makes it RUN/best
        self._record_score(VALIDATION, score, best=is_better)

    def _record_score(self, kind: str, score: Score, **more: Any) -> None:
        place = {"kind": kind, "step": self.state.step}
        self._record({**place, **asdict(score), **more, "elapsed": self.state.elapsed})

    def _checkpoint_due(self) -> bool:
        """Whether to save now; never after bad steps, so that the newest checkpoint is good."""
        state, training = self.state, self.training
        if state.step and state.step != self._saved_step:
            minutes = (state.elapsed - self._saved_at) / 60
            for every in (training.checkpoint_every, training.keep_every):
                self._checkpoint_owed |= every is not None and state.step % every == 0
            self._checkpoint_owed |= minutes >= training.checkpoint_minutes
        return self._checkpoint_owed and not self._bad_in_a_row

    def _save(self) -> None:
        state = self.state
        if self._saved_step != state.step:
            self.ranks.first(self._write_checkpoint)
        elif self._saved_validation != state.validated:
            self.ranks.first(lambda: checkpoint.update(self.run_folder, state))
        self._saved_step, self._saved_at = state.step, state.elapsed
        self._saved_validation = state.validated
        self._checkpoint_owed = False

    def _write_checkpoint(self) -> None:
        """Write a checkpoint, unless the weights are not finite."""
        finite = [parameter.detach().isfinite().all() for parameter in self.model.parameters()]
        if bool(torch.stack(finite).all()):
            checkpoint.save(
                self.run_folder,
                self.state,
                self.model,
                self.optimizer,
                self.ema,
                keep=self.training.keep,
                keep_every=self.training.keep_every,
            )
        else:
            self._metrics.say(f"the weights after step {self.state.step} are not finite: not saved")

    def _stop(self, number: int) -> None:
        """Save after a signal, and report the checkpoint."""
        if not self._bad_in_a_row:
            self._save()
        name = signal.Signals(number).name
        self._say(
            f"stopped by {name} after step {self.state.step:,}; "
            f"{checkpoint.what_is_left(self.run_folder)}; the same command resumes it"
        )

    def _record(self, values: dict[str, Any]) -> None:
        self.ranks.first(lambda: self._metrics.record(values))

    def _say(self, text: str) -> None:
        self.ranks.first(lambda: self._metrics.say(text))

    def _averaged(self) -> AbstractContextManager[None]:
        """Return a context in which the model has its averaged weights, if there are any."""
        return nullcontext() if self.ema is None else self.ema.in_place()

    def _autocast(self) -> AbstractContextManager[None]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.ranks.device.type, dtype=torch.bfloat16)


def _is_better(score: Score, best: Best | None) -> bool:
    """Whether a score has more correct answers, or as many and a lower loss."""
    if not math.isfinite(score.loss):
        return False
    return best is None or (score.exact_match, -score.loss) > (best.exact_match, -best.loss)
