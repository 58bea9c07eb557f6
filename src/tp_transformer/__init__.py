"""The TP-Transformer of Schlag et al. (2020), its baselines, and the Mathematics Dataset.

The files, in the order in which a question becomes an answer. Each imports only from files above
it in this list:

    errors.py                     errors that a user can cause: one clear line each
    interruptions.py              Ctrl-C, SIGTERM and SIGHUP: soon, and without a traceback
    ranges.py                     ranges of numbers as types, checked in one place
    settings.py                   dataclasses from YAML; presets; unknown keys refused
    registry.py                   what can be chosen by name, from inside and from outside
    atomic.py                     files and folders that appear whole or not at all
    progress.py                   a bar in a terminal, now and then a line elsewhere
    allocator.py                  memory: freed, it stays; what cannot fit is refused
    published.py                  the numbers printed in the papers, each with its source
    figures.py                    one plotting style; saves SVG, PDF and PNG
    distributed.py                ranks, collectives, devices
    data/checked.py               values of files, checked one by one
    data/vocabulary.py            tokens; text to ids and back
    data/task.py                  what a task is; the registry of tasks
    data/mathematics/modules.py   the 56 modules, their splits, their extrapolation files
    data/mathematics/task.py      the Mathematics Dataset as a task
    data/mathematics/deepmind.py  DeepMind's generator with current libraries, repeatable by address
    data/mathematics/exact.py     polynomials and surds, printed as sympy prints them
    data/mathematics/fast.py      faster replacements of its costliest parts, with the same text
    data/parallel.py              many tasks on many workers, in order, lost workers replaced
    data/mathematics/generate.py  questions by address, one or many, here or on workers
    data/permutation.py           a pseudo-random order that is computed, not stored
    data/manifest.py              store.json: what a store says about itself, validated
    data/summary.py               lengths and checksums of a segment's texts
    data/store.py                 Arrow files on disk, memory-mapped, any row at once
    data/verify.py                whether a store is what was written, by its hashes
    data/writer.py                writes a store: in bounded memory, whole or not at all
    data/mathematics/partial.py   a store in the making: what is ordered, what is there so far
    data/mathematics/leaks.py     test questions that occur in training, drawn again
    data/mathematics/produce.py   a whole store from the generator, continued when killed
    data/mathematics/archive.py   a .tar.gz as a stream, nothing extracted
    data/mathematics/sources.py   an archive, a folder or the Hugging Face copy, block by block
    data/mathematics/pieces.py    some rows of a file, checked; what is done about faults
    data/mathematics/parsers.py   from a file's bytes to pieces, for each format
    data/mathematics/corpus.py    reads the published dataset into a store
    data/mathematics/v1.py        rows as v1.0 has them
    data/export.py                the store as v1.0 text, Parquet or JSON lines
    data/show.py                  what a store holds, drawn or as JSON
    data/sampler.py               which rows make up which batch: a function of seed and step
    data/layout/base.py           what layouts have in common: rows, and who attends to whom
    data/layout/grouped.py        attention within packed rows, group by group
    data/layout/padded.py         rows side by side, filled up
    data/layout/packed.py         rows end to end, without padding
    data/batch.py                 questions and answers as ids, in a layout
    data/feed.py                  the batches of a store, step by step
    model/trace.py                named points that record or replace a tensor on request
    model/binding.py              how a filler and a role become one vector: one class per binding
    model/masks.py                torch's masks as ours
    model/weightless.py           models built without initialising their weights
    model/config.py               the shape of a Transformer
    model/cache.py                keys and values of the positions decoded so far
    model/attention.py            TP-attention beside its equations; the drop-in for torch's
    model/layers.py               cells, feed-forward, embedding
    model/bare.py                 modules for many small calls, without the cost of a module call
    model/loss.py                 token-summed loss and counts
    model/decoding.py             greedy and beam search over one cached step
    model/solver.py               from questions to answers in text
    model/folder.py               a model on disk: written whole, read without unpickling
    model/base.py                 what every model can do: loss, solve, trace, save
    model/transformer.py          the Transformer and the TP-Transformer
    model/recurrent.py            the LSTM baseline of Saxton et al.
    model/family.py               build a preset, load a folder
    model/listing.py              every preset, beside what the paper prints of it
    provenance.py                 which model, when, with what: lines for every file of numbers
    solving.py                    questions from wherever they come, answers as they come
    scoring/statistics.py         intervals, paired tests
    scoring/verdict.py            right or wrong by one pass; near-ties decided in float64
    scoring/held_out.py           training questions that a model's run held out
    scoring/questions.py          which questions of a store are asked
    scoring/results.py            what an evaluation found, as results.json
    scoring/journal.py            what an evaluation has found so far
    scoring/diagnose.py           what kind of wrong
    scoring/evaluate.py           exact match per module
    scoring/compare.py            results beside each other and beside the paper's
    scoring/table.py              results in a terminal: strong, weak, how sure; Table 1
    scoring/document.py           results as Markdown, CSV, LaTeX
    scoring/bars.py               the bars of the paper's appendix
    training/optim.py             the optimizer; schedules as pure functions of the step
    training/display.py           what a run shows: a live panel in a terminal, lines elsewhere
    training/metrics.py           what a run records: metrics.jsonl, a log, TensorBoard
    training/curve.py             how the error of a run falls, as a figure
    training/checkpoint.py        the whole state of a run, crash-safe
    training/passes.py            a rank's share of a batch, in passes of bounded size
    training/validate.py          loss and exact match on held-out questions
    training/signals.py           SIGTERM and Ctrl-C, remembered until the loop looks
    training/gradient.py          the gradient of a batch, over passes and ranks
    training/loop.py              the loop: a step after the other, validated and saved
    training/run.py               the settings of a run, and the folder that explains it
    training/watch.py             several runs at a time, watched through their records
    interpret/record.py                  what passes named points, question by question, unpadded
    interpret/outcome.py                 what an analysis leaves behind: numbers as JSON, captions
    interpret/expressions.py             arithmetic questions as trees
    interpret/structure.py               what each character is in its tree, and to what it belongs
    interpret/choices.py                 which heads, positions and questions are looked at
    interpret/clusters.py                vectors in clusters, by k-means
    interpret/positions.py               every position of a sample: its character, its labels
    interpret/probes.py                  how well labels can be told from clusters and from vectors
    interpret/reversal.py                whether sides reverse in a denominator's denominator
    interpret/naming.py                  a name for a cluster, where it is clear
    interpret/roles_result.py            what roles' clusters and scores say
    interpret/roles_figure.py            questions with their clusters (figure 2), scores
    interpret/roles.py                   clusters of roles and the structure in them (section 5.1)
    interpret/text_attention.py          what heads attend to by characters and distance alone
    interpret/following.py               how well heads follow a relation
    interpret/attention_maps_result.py   which heads follow which relation
    interpret/attention_maps_figure.py   rows of symbols (figure 3), heat maps, relations
    interpret/attention_maps.py          where heads look, and which follow a relation (section 5.2)
    interpret/information_result.py      what heads tell of states
    interpret/information_figure.py      a bar for each head, beside controls
    interpret/information.py             what a head's value vector tells of the state (section 6.1)
    interpret/simplified.py              the simplified network of section 6.2
    interpret/nested.py                  nested fractions, and two of their numbers exchanged
    interpret/operations.py              operations on role vectors, and what is answered under them
    interpret/interchange.py             the roles of two numbers exchanged: which answer follows
    interpret/interchange_figure.py      how often it follows, beside controls
    interpret/binding_problem_result.py  what exchanged numbers do to a model
    interpret/binding_problem_figure.py  how far they move a state
    interpret/binding_problem.py         which structures attention confuses (section 6.2)
    interpret/surgery_result.py          what operations on roles do to answers
    interpret/surgery_figure.py          the share of changed answers
    interpret/surgery.py                 roles removed or replaced: what becomes of answers
    interpret/tensor_product_result.py   what is kept of the tensor product
    interpret/tensor_product_figure.py   the same, head by head
    interpret/tensor_product.py          what the Hadamard product keeps of it (section 7)
    interpret/run.py                     one analysis from a model and a store to its files
    interop/pickles.py            other people's pickles, read without running what they bring along
    interop/authors.py            the paper's authors' published checkpoints
    demo.py                       the front door
    verbs/verb.py                 what a verb of the command line is, what several share
    verbs/data.py                 `tpt data`: the dataset made, read, looked at, passed on
    verbs/model.py                models listed, asked, trained, brought in; the demo
    verbs/scoring.py              `tpt evaluate` and `tpt compare`
    verbs/interpret.py            `tpt interpret`: a verb for each analysis
    cli.py                        from what was typed to a verb, and how it ends
    __main__.py                   `tpt` and `python -m tp_transformer`
    supervised.py                 `tpt` that stops when whoever started it has ended

Names are loaded when they are first used, so that importing the package is quick.
"""

__version__ = "0.1.0.dev0"

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` for it takes a while
if TYPE_CHECKING:
    from tp_transformer.data.batch import Batch as Batch
    from tp_transformer.data.vocabulary import Vocabulary as Vocabulary
    from tp_transformer.errors import UserError as UserError
    from tp_transformer.model.attention import TPMultiheadAttention as TPMultiheadAttention
    from tp_transformer.model.config import TransformerConfig as TransformerConfig
    from tp_transformer.model.family import build as build
    from tp_transformer.model.family import load as load
    from tp_transformer.model.recurrent import LSTM as LSTM
    from tp_transformer.model.recurrent import LSTMConfig as LSTMConfig
    from tp_transformer.model.trace import trace as trace
    from tp_transformer.model.transformer import Transformer as Transformer
    from tp_transformer.settings import preset_names as preset_names
    from tp_transformer.training.run import RunConfig as RunConfig
    from tp_transformer.training.run import train as train

_HOMES = {
    "Batch": "data.batch",
    "LSTM": "model.recurrent",
    "LSTMConfig": "model.recurrent",
    "RunConfig": "training.run",
    "TPMultiheadAttention": "model.attention",
    "Transformer": "model.transformer",
    "TransformerConfig": "model.config",
    "UserError": "errors",
    "Vocabulary": "data.vocabulary",
    "build": "model.family",
    "load": "model.family",
    "preset_names": "settings",
    "trace": "model.trace",
    "train": "training.run",
}

__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in {"data", "model"}:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
