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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tp_transformer.data.sampling import Feed, Prefetcher
from tp_transformer.errors import UserError
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.runtime.files import write_json
from tp_transformer.runtime.progress import Interval, RecentSpeed
from tp_transformer.runtime.ranks import Ranks, native_precision
from tp_transformer.runtime.signals import NUMBERS, DeferredSignals
from tp_transformer.training import checkpoint
from tp_transformer.training.checkpoint import SUMS, Best, State, ValidationState, Window
from tp_transformer.training.config import Limits, RunConfig
from tp_transformer.training.gradient import Gradient, LocalBatch, summed
from tp_transformer.training.optim import (
    Ema,
    clip,
    learning_rate,
    make_optimizer,
    set_learning_rate,
)
from tp_transformer.training.record import MONITOR, TRAIN, VALIDATION, Display
from tp_transformer.training.validate import LocalQuestions, Score, validate

BAD_BATCH = "bad_batch.json"
SECONDS_BETWEEN_VIEWS = 1.0  # of the averages of a window that is not complete yet
_SPEED_WINDOW = 180.0  # seconds of training whose speed the time left is computed from


class Loop:
    """A run in progress: the model, its optimizer and the state of training."""

    def __init__(
        self,
        model: AnyModel,
        feed: Feed,
        run: Path,
        ranks: Ranks,
        config: RunConfig,
        monitor: LocalQuestions | None = None,
    ) -> None:
        self.model, self.feed, self.run_folder, self.ranks = model, feed, run, ranks
        self.optim, self.training = config.optim, config.training
        self.validation = config.validation
        self.monitor = monitor
        self.limits = Limits.of(self.training, feed.sampler.batch_size, len(feed.sampler))
        self.optimizer = make_optimizer(model, self.optim)
        self.ema = None if self.training.ema is None else Ema(model, self.training.ema)
        self.state = State()
        self.precision = native_precision(self.training.precision, ranks.device)
        self._layout = model.layout_for(ranks.device, getattr(torch, self.precision))
        label_smoothing = self.training.label_smoothing
        self._gradient = Gradient(model, ranks, self.training.seed, label_smoothing)
        self._display = Display()
        self._signals = DeferredSignals()
        self._speed = RecentSpeed(_SPEED_WINDOW)
        self._view_interval = Interval(SECONDS_BETWEEN_VIEWS, starts_due=True)
        self._bad_in_a_row = 0
        self._is_checkpoint_due = False
        # The step, the last validation and the schedule as the newest checkpoint has them.
        self._saved: tuple[int, int | None, bool] | None = None

    def restore(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of a checkpoint."""
        checkpoint.restore(tensors, self.model, self.optimizer, self.ema)
        self.state = state
        self._saved = state.step, state.validated, state.is_scheduled
        if self.progress < 1:
            state.forget_end()  # of a run that has been extended

    def run(self, display: Display) -> int | None:
        """Train to the end and return None, or until a signal is received and return its number."""
        self._display = display
        if self._saved is not None:
            self._save()  # without the validation that was due only because of an earlier end
        self._start()
        with self._signals, Prefetcher(self._local_batch, first=self.state.step) as prefetcher:
            while True:
                if self._validation_due():
                    self._validate()
                if self.ended:
                    break
                if self._is_checkpoint_due and not self._bad_in_a_row:
                    self._save()  # never after bad steps, so that the newest checkpoint is good
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
    def ended(self) -> bool:
        """Whether a limit of the run is reached."""
        patience = self.training.patience
        return self.progress >= 1 or (patience is not None and self.state.stale >= patience)

    @property
    def finished(self) -> bool:
        """Whether the run has ended and its final state is saved."""
        is_saved = self._saved is not None and self._saved[0] == self.state.step
        return self.ended and is_saved and not self._validation_due()

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
        counted = {
            "rows": local.n_rows,
            "tokens": local.n_tokens,
            "symbols": local.n_symbols,
            "positions": local.n_positions,
            "waited": (prefetcher.waited - waited) / n_ranks,
            "clock": time.monotonic() - self._started if self.ranks.is_first else 0.0,
            **{str(number): self._signals.received == number for number in NUMBERS},
        }
        sums = summed(self.ranks, measured, counted)
        is_good = math.isfinite(sums["loss"]) and math.isfinite(sums["norm"])
        rate = learning_rate(self.optim, self.state.step + 1, self.progress)
        if is_good:
            set_learning_rate(self.optimizer, rate)
            self.optimizer.step()
            if self.state.step == 0:  # raises early if a checkpoint cannot hold the state
                dict(checkpoint.optimizer_tensors(self.model, self.optimizer))
            if self.ema is not None:
                self.ema.update(self.state.step + 1)
        self._count(sums, time.monotonic() - start, is_good)
        self._log(rate)
        if not is_good:
            self._handle_nonfinite_step(sums)
        return next((number for number in NUMBERS if sums[str(number)]), None)

    def _count(self, sums: Mapping[str, float], duration: float, is_good: bool) -> None:
        """Count a step, add it to the window of averages, and note if a checkpoint is now due."""
        state, training = self.state, self.training
        period = 60 * training.checkpoint_minutes
        self._is_checkpoint_due |= sums["clock"] // period > state.elapsed // period
        state.step += 1
        state.elapsed = sums["clock"]
        for every in (training.checkpoint_every, training.keep_every):
            self._is_checkpoint_due |= every is not None and state.step % every == 0
        self._speed.add(state.elapsed, state.step)
        state.window.seconds += duration
        state.window.waited += sums["waited"]
        if not is_good:
            return
        self._bad_in_a_row = 0
        state.window.steps += 1
        for name in SUMS:
            setattr(state.window, name, getattr(state.window, name) + sums[name])

    def _log(self, rate: float) -> None:
        """Record the averages of a window, after the first step too; show them in between."""
        if self.state.step == 1 or self.state.step % self.training.log_every == 0:
            values = self._averages(rate)
            self.state.window = Window()
            if values is not None:
                self._record(values)
        elif self.ranks.is_first and self._view_interval.is_over():
            values = self._averages(rate)
            if values is not None:
                self._display.update(values)

    def _averages(self, rate: float) -> dict[str, Any] | None:
        """Return the averages since the last record; None if no step was applied."""
        state, window = self.state, self.state.window
        if not window.steps:
            return None
        speed = self._speed.per_second(state.elapsed, state.step)
        return {
            "kind": TRAIN,
            "step": state.step,
            "epoch": self.feed.sampler.epoch(state.step),
            "loss": window.loss / window.tokens,
            "exact_match": window.right / window.rows,
            "learning_rate": rate,
            "gradient_norm": window.norm / window.steps,
            "samples_per_second": window.rows / window.seconds,
            "symbols_per_second": window.symbols / window.seconds,
            "padding": 1 - window.symbols / window.positions,
            "waiting": window.waited / window.seconds,
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
        values = f"loss {sums['loss'] / sums['tokens']:g}, gradient norm {sums['norm']:g}"
        self._say(
            f"step {step} is not applied: {values} "
            f"({self._bad_in_a_row} in a row; the run stops at {most})"
        )
        if self._bad_in_a_row >= most:
            self.ranks.first(self._write_bad_batch)
            raise UserError(
                f"{most} steps in a row had a loss or gradient that is not finite, the last one "
                f"step {step} ({values}); its questions are in {self.run_folder / BAD_BATCH}, and "
                f"{checkpoint.what_is_left(self.run_folder)}"
            )

    def _write_bad_batch(self) -> None:
        rows = self.feed.sampler.rows(self.state.step - 1)
        texts = zip(rows.tolist(), *self.feed.split.rows(rows), strict=True)
        names = ("row", "question", "answer")
        samples = [dict(zip(names, sample, strict=True)) for sample in texts]
        write_json(self.run_folder / BAD_BATCH, {"step": self.state.step, "samples": samples})

    def _validation_due(self) -> bool:
        step = self.state.step
        can_validate = self.monitor is not None or len(self.feed.held_out_rows) > 0
        if not can_validate or not step or self.state.validated == step:
            return False
        return step % self.validation.every == 0 or self.ended

    def _validate(self) -> None:
        """Score the model on held-out questions, which select the best, and on monitored ones."""
        state = self.state
        is_due = state.step % self.validation.every == 0
        earlier = ValidationState(validated=state.validated, best=state.best, stale=state.stale)
        state.before_end = None if is_due else earlier
        state.validated = state.step
        with self._averaged(), self._autocast():
            if len(self.feed.held_out_rows):
                self._choose(self._score(self.feed.validation))
            if self.monitor is not None:
                score = self._score(self.monitor)
                self._record_score(MONITOR, score, split=self.feed.split.task.test_splits[0])
        if self._saved is not None and self._saved[0] == state.step:
            self._save()  # the checkpoint was written because of a signal, before this validation

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
            # The checkpoint makes it RUN/best. One at the end is written in any case.
            self._is_checkpoint_due |= state.before_end is None
        self._record_score(VALIDATION, score, best=is_better)

    def _record_score(self, kind: str, score: Score, **more: Any) -> None:
        step = {"kind": kind, "step": self.state.step}
        self._record({**step, **asdict(score), **more, "elapsed": self.state.elapsed})

    def _save(self) -> None:
        """Write a checkpoint, or what has changed about the one of this step."""
        state = self.state
        has_checkpoint = self._saved is not None and self._saved[0] == state.step
        state.is_scheduled = self._is_checkpoint_due or (has_checkpoint and state.is_scheduled)
        saved = state.step, state.validated, state.is_scheduled
        if not has_checkpoint:
            self.ranks.first(self._write_checkpoint)
        elif saved != self._saved:
            self.ranks.first(lambda: checkpoint.update(self.run_folder, state))
        self._saved = saved
        self._is_checkpoint_due = False

    def _write_checkpoint(self) -> None:
        """Write a checkpoint, unless the weights are not finite."""
        finite = [parameter.detach().isfinite().all() for parameter in self.model.parameters()]
        if not bool(torch.stack(finite).all()):
            self._display.say(f"the weights after step {self.state.step} are not finite: not saved")
            return
        checkpoint.save(
            self.run_folder,
            self.state,
            self.model,
            self.optimizer,
            self.ema,
            keep=self.training.keep,
            keep_every=self.training.keep_every,
        )

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
        self.ranks.first(lambda: self._display.show(values))

    def _say(self, text: str) -> None:
        self.ranks.first(lambda: self._display.say(text))

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
