"""The engine computes what the modules compute, and only where it knows all of them."""

import copy
import pickle
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import tp_transformer as tpt
from tp_transformer.data.vocabulary import Ragged, Vocabulary
from tp_transformer.errors import TextError
from tp_transformer.model import solver
from tp_transformer.model.attention import SelfAttention
from tp_transformer.model.binding import HadamardBinding, NoBinding
from tp_transformer.model.layers import FeedForward
from tp_transformer.model.layout import Packed, Padded
from tp_transformer.model.search import greedy
from tp_transformer.model.solver import Solver
from tp_transformer.ops import engine, library
from tp_transformer.ops.engine import Engine, engine_for

pytestmark = [
    pytest.mark.skipif(library.load() is None, reason="the kernels are not compiled"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # of tools of torch
]

QUESTIONS = ["What is 3 + 4?", "Is 7 prime?", "Sort 3, -1, 7.", "Solve 2*x = 4 for x.", "1"]
ANSWERS = ["7", "True", "-1, 3, 7", "2", "1"]
MANY = [str(10**row) for row in range(19)]
SIZES = [
    *({}, {"d_model": 40, "n_heads": 5, "d_ff": 72}, {"d_ff": 1032}, {"n_heads": 1}),
    {"binding": "none", "embedding_binding": False},
    {"d_model": 576, "n_layers": 1},  # more inputs than a panel has
]


def model_of(**fields):
    torch.manual_seed(0)
    return tpt.build("tp-transformer-tiny", **fields).eval()


def lay_out(model, questions=QUESTIONS, layout=Packed):
    return layout.lay_out(model.vocabulary.encode(questions), model.vocabulary.pad)


def begin(model, n_steps=12, questions=QUESTIONS):
    """The state before the first step, of an engine or of a model."""
    return model.begin(model.encode(*lay_out(model, questions)), n_steps)


def batch_of(model, n_questions=5, layout=Packed):
    rows = (model.vocabulary.encode(each[:n_questions]) for each in (QUESTIONS, ANSWERS))
    return tpt.Batch.from_ragged(*rows, model.vocabulary.pad, layout)


@pytest.fixture(params=["keys and values", "states"])
def what_is_read(request, monkeypatch):
    """What the steps read of the source."""
    monkeypatch.setattr(engine, "EXPECTED_STEPS", 0)
    many = 1 if request.param == "states" else 10**6
    monkeypatch.setattr(engine, "MANY_QUESTIONS", many)
    return request.param


def assert_near(found, wanted, tolerance=1e-4):
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("fields", SIZES, ids=str)
@torch.inference_mode()
def test_steps_are_those_of_the_model_also_when_rows_leave(called, what_is_read, fields):
    model = model_of(**fields)
    both = engine_for(model), model
    states = [begin(each) for each in both]
    assert ("memory_forward" in called) == (what_is_read == "keys and values")
    rows = torch.arange(len(QUESTIONS))
    for step in range(12):
        previous = 3 + (7 * rows + step) % 60
        logits, wanted = (each.step(previous, s) for each, s in zip(both, states, strict=True))
        assert_near(logits, wanted, 1e-3)
        if step in (2, 9):
            stay = torch.tensor([3, 0, 2] if step == 2 else [1, 2])
            rows = rows[stay]
            for state in states:
                state.select(stay, stay)
    with pytest.raises(ValueError, match="12 positions"):
        both[0].step(previous, states[0])


@pytest.mark.parametrize("n_words", [1, 2, 3])
@torch.inference_mode()
def test_a_vocabulary_may_have_any_size(n_words):
    words = ["What", "is", "3", "+", "4", "?", "Is", "7", "prime"]
    vocabulary = Vocabulary.of([*words, *map(str, range(100, 100 + n_words))], "words")
    torch.manual_seed(0)
    model = tpt.build("tp-transformer-tiny", vocabulary=vocabulary).eval()
    previous, questions = torch.tensor([3, len(vocabulary) - 1]), ["What is 3", "Is 7 prime ?"]
    logits, wanted = (
        each.step(previous, begin(each, 1, questions)) for each in (engine_for(model), model)
    )
    assert_near(logits, wanted)


@pytest.mark.parametrize("fields", SIZES, ids=str)
@pytest.mark.parametrize("n_questions", [0, 1, 5])
@torch.inference_mode()
def test_logits_of_known_answers_are_those_of_the_model(called, fields, n_questions):
    model = model_of(**fields)
    for layout in (Packed, Padded) if n_questions == 1 else (Packed,):
        batch = batch_of(model, n_questions, layout)
        called.clear()
        logits = engine_for(model)(batch)
        encoder = ["embed_forward", "cells_forward"]
        assert called == [*encoder, "embed_forward", "memory_forward", "cells_forward"]
        assert_near(logits, model(batch), 1e-3)


@torch.inference_mode()
def test_rows_of_questions_and_answers_must_be_the_same():
    model = model_of()
    batch, fewer = batch_of(model), batch_of(model, 2)
    object.__setattr__(batch, "source", fewer.source)
    object.__setattr__(batch, "source_layout", fewer.source_layout)
    with pytest.raises(ValueError, match="5 rows of queries cannot attend to 2 rows"):
        engine_for(model)(batch)


@pytest.mark.parametrize("fields", SIZES, ids=str)
@pytest.mark.parametrize("n_threads", [1, 2])
@torch.inference_mode()
def test_the_encoder_of_many_questions_is_that_of_each(monkeypatch, called, fields, n_threads):
    """A thread has several blocks of positions, for which weights are packed into panels once.

    They are packed for each layer, or before, and then the kernel does not read them again.
    """
    model = model_of(**fields)
    questions = [f"What is {number} + {number**3}?" for number in range(40)]
    found = engine_for(model)
    alone = [found.encode(*lay_out(model, [question]))[0] for question in questions]
    wanted = torch.cat(alone, dim=1)
    assert wanted.shape[1] > 2 * 240  # positions of a block
    assert_near(wanted, model.encode(*lay_out(model, questions)).state)
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    assert torch.equal(found.encode(*lay_out(model, questions))[0], wanted)
    packed = found.with_panels()
    for cell in model.encoder:
        for layer in (cell.self_attention.in_proj, cell.feed_forward.contract):
            layer.weight.fill_(torch.nan)
    assert torch.equal(packed.encode(*lay_out(model, questions))[0], wanted)


@pytest.mark.parametrize("fields", SIZES, ids=str)
@torch.inference_mode()
def test_weights_in_panels_change_no_bit_of_a_step(fields):
    """Of 15 rows, for which `begin` packs nothing, also with outputs that do not fill a panel."""
    model = model_of(**fields)
    both = engine_for(model), engine_for(model).with_panels()
    states = [begin(each, 5, QUESTIONS * 3) for each in both]
    for step in range(5):
        previous = 3 + (7 * torch.arange(15) + step) % 60
        assert torch.equal(*(state.step(previous) for state in states))


@pytest.mark.parametrize("n_copies", [2, 60])
@pytest.mark.usefixtures("what_is_read")
@torch.inference_mode()
def test_equal_rows_have_equal_results(n_copies):
    model = model_of()
    questions = QUESTIONS * n_copies
    previous = 3 + torch.arange(len(questions)) % 2  # two tokens among the rows
    found = engine_for(model)
    memory, _ = found.encode(*lay_out(model, questions))
    assert_near(memory, model.encode(*lay_out(model, questions)).state)
    assert torch.equal(*memory.chunk(2, dim=1))
    states = begin(found, 2, questions), begin(model, 2, questions)
    for step in range(2):
        assert_near(found.step(previous + step, states[0]), model.step(previous + step, states[1]))


@pytest.mark.parametrize("n_rows", [17, 49, 50, 99])
@pytest.mark.usefixtures("what_is_read")
@torch.inference_mode()
def test_the_number_of_threads_changes_no_bit(monkeypatch, n_rows):
    """Few rows are added in another order than many: no thread may be left with few."""
    found = engine_for(model_of(d_ff=1032, n_layers=1))
    logits = []
    for n_threads in (1, 2, 3, 100):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n_threads: n)
        state = begin(found, 2, ["1"] * n_rows)
        logits.append(found.step(3 + torch.arange(n_rows) % 60, state))
    assert all(torch.equal(logits[0], other) for other in logits[1:])


@torch.inference_mode()
def test_steps_read_states_for_many_long_sources(called):
    model = model_of(d_model=128, n_heads=2, n_positions=100)
    for n_questions, length, n_calls in ((20, 60, 0), (20, 10, 1), (2, 60, 1)):
        called.clear()
        model.solve(["1" * length] * n_questions, max_length=16)
        assert called.count("memory_forward") == n_calls


@pytest.mark.parametrize("binding", ["hadamard", "none"])
@pytest.mark.parametrize("n_questions", [0, 1, 2, 11, 12, 13])
@torch.inference_mode()
def test_greedy_search_is_that_of_the_model(called, binding, n_questions):
    """Lengths of 1 to the maximum, few and many rows, ends of answers at different steps."""
    model = model_of(binding=binding, embedding_binding=binding != "none", n_positions=40)
    # So that answers differ, and end at different steps.
    model.embedding.symbols.weight[model.vocabulary.eos] *= 2 if binding == "hadamard" else 8
    for cell in model.decoder:
        cell.self_attention.in_proj.weight.mul_(3)
        cell.cross_attention.in_proj.weight.mul_(6)
    longest = model.n_positions - 2
    rows = (0, 37, 1, 7, 8, 15, 16, 2, 3, 5, 6, 9, 10)[:n_questions]
    encoded = model.vocabulary.encode([str(10**row)[-longest:] for row in rows])
    ids, layout = Packed.lay_out(encoded, model.vocabulary.pad)
    for max_length in (1, 8, 23, 40):
        found = engine_for(model).greedy(encoded, max_length)
        wanted = greedy(model, ids, max_length, layout) if n_questions else found
        assert torch.equal(found, wanted)
    assert "decoder_step" not in called
    if n_questions == 13:
        lengths = (found != model.vocabulary.pad).sum(dim=1)
        assert lengths.min() < lengths.max()


@torch.inference_mode()
def test_the_largest_logit_is_that_of_torch():
    """Of equal logits the first, and NaN before all others."""
    model = model_of()
    encoded, given = model.vocabulary.encode(QUESTIONS), lay_out(model)
    weight = model.embedding.symbols.weight
    weight[40:] = weight[10]
    assert engine_for(model).greedy(encoded, 4).max() < 40
    weight[50] = torch.nan
    found = engine_for(model).greedy(encoded, 4)
    assert found[:, 0].tolist() == [50] * len(QUESTIONS)
    assert torch.equal(found, greedy(model, given[0], 4, given[1]))


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.usefixtures("what_is_read")
def test_answers_are_those_of_the_model(called, beam):
    model = model_of()
    found = Solver(model).answers(QUESTIONS, beam=beam, max_length=10)
    texts = model.solve(QUESTIONS, max_length=10)
    assert called
    model.engine = None  # switches it off
    called.clear()
    wanted = Solver(model).answers(QUESTIONS, beam=beam, max_length=10)
    assert texts == model.solve(QUESTIONS, max_length=10)
    assert not {"embed_forward", "cells_forward", "decoder_greedy"} & set(called)
    for ours, theirs in zip(found, wanted, strict=True):
        assert [answer.text for answer in ours] == [answer.text for answer in theirs]
        scores = [answer.score for answer in theirs]
        assert [answer.score for answer in ours] == pytest.approx(scores, rel=1e-4)


# For one group, the decoder is packed; for several, the encoder and the decoder are, once for all.
@pytest.mark.parametrize(("at_once", "n_stacks"), [(128, 1), (16, 2), (4, 2)])
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_many_questions_have_the_answers_of_few(
    monkeypatch, called, precision, n_threads, at_once, n_stacks
):
    model = model_of().in_precision(precision)
    few = [model.solve([question], max_length=5)[0] for question in MANY]
    best = [answers[0].text for answers in Solver(model).answers(MANY, max_length=5, beam=1)]
    assert best == few
    monkeypatch.setattr(solver, "ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    for beam in (1, 2):
        called.clear()
        found = model.solve(MANY, max_length=5, beam=beam)
        assert beam > 1 or found == few
        assert called.count("pack_layers") == (n_stacks if precision == "float32" else 0)
        assert called.count("pack_heads") == (precision == "float32")


@pytest.mark.parametrize("at_once", [16, 128])
def test_panels_are_freed_after_a_search(monkeypatch, at_once):
    model, panels = model_of(), []
    call = library.call

    def call_and_note(name, *arguments):
        if name.startswith("pack_"):
            panels.append(weakref.ref(arguments[-1]))
        call(name, *arguments)

    monkeypatch.setattr(library, "call", call_and_note)
    monkeypatch.setattr(solver, "ROWS_AT_ONCE", at_once)
    for beam in (1, 2):
        panels.clear()
        model.solve(MANY, max_length=5, beam=beam)
        assert panels
        assert not any(panel() is not None for panel in panels)


class _Uniform(SelfAttention):
    def attend(self, query, *arguments, **options):
        return super().attend(torch.zeros_like(query), *arguments, **options)


def _set_class(part, kind):
    part.__class__ = kind


def _set_heads(model):
    for stack in (model.encoder, model.decoder):
        stack[1].self_attention.n_heads *= 2
        stack[1].self_attention.binding.d_head //= 2


def _set_ff(model):
    for stack in (model.encoder, model.decoder):
        stack[1].feed_forward = FeedForward(model.config.d_model, 8).eval()


def _weight_norm(layer):
    nn.utils.parametrizations.weight_norm(layer)
    layer.parametrizations.weight.original0.data *= 2


# Each makes a model compute something else than the kernels know.
UNKNOWN = {
    "a class": lambda model: _set_class(model.decoder[1].self_attention, _Uniform),
    "a class of a stack": lambda model: _set_class(model.encoder[1].self_attention, _Uniform),
    "a hook": lambda model: model.decoder[1].register_forward_hook(lambda *one: -3 * one[-1]),
    "a hook before": lambda model: model.encoder[0].feed_forward.register_forward_pre_hook(
        lambda _, given: (3 * given[0],)
    ),
    "a type": lambda model: model.double(),
    "eps": lambda model: setattr(model.decoder[0].output_norm, "eps", 0.5),
    "a layer without bias": lambda model: setattr(
        model.encoder[0].feed_forward, "contract", nn.Linear(256, 64, bias=False)
    ),
    "a parametrisation": lambda model: _weight_norm(model.decoder[0].feed_forward.expand),
    "sizes of a feed-forward layer": _set_ff,
    "heads": _set_heads,
    "heads of cross-attention": lambda model: setattr(
        model.decoder[0].cross_attention, "n_heads", 8
    ),
    "a binding of cross-attention": lambda model: setattr(
        model.decoder[0].cross_attention, "binding", NoBinding(4, 16)
    ),
    "a binding": lambda model: setattr(
        model.encoder[1].self_attention, "binding", NoBinding(4, 16)
    ),
    "bound values": lambda model: setattr(
        model.encoder[1].self_attention.binding, "binds_values", True
    ),
    "a norm of embeddings": lambda model: setattr(model.embedding.symbols, "max_norm", 0.5),
    "a size of embeddings": lambda model: setattr(model.embedding.symbols, "embedding_dim", 16),
}


def logits_of(model):
    """Those of the second step, with the engine if there is one."""
    with torch.inference_mode():
        backend = engine_for(model) or model
        state, previous = begin(backend, 2), torch.full((len(QUESTIONS),), 5)
        return [backend.step(previous + step, state) for step in range(2)][1]


@pytest.mark.parametrize("change", UNKNOWN)
def test_a_change_that_the_kernels_do_not_know_has_its_effect(change):
    """Whether it is made before the first call or after it."""
    model, later = model_of(), model_of()
    before = logits_of(later)
    assert isinstance(later.engine, Engine)
    for each in (model, later):
        torch.manual_seed(1)
        UNKNOWN[change](each)
        each.eval()
        with torch.inference_mode():
            assert engine_for(each) is None
    after = logits_of(later)
    assert torch.equal(after, logits_of(model))
    assert not torch.equal(before, after.float())


# Each changes what the kernels read.
KNOWN = {
    "in place": lambda part: part.weight.mul_(-3),
    "a tensor": lambda part: setattr(part, "weight", nn.Parameter(-part.weight.detach())),
    "the data of a tensor": lambda part: setattr(part.weight, "data", -part.weight.data),
    "a state dict": lambda part: part.load_state_dict(
        {name: -tensor for name, tensor in part.state_dict().items()}
    ),
}
PARTS = {
    "the embedding": lambda model: model.embedding.role_proj,
    "the encoder": lambda model: model.encoder[1].self_attention.out_proj,
    "keys and values": lambda model: model.decoder[0].cross_attention.memory_proj,
    "the decoder": lambda model: model.decoder[1].self_attention.out_proj,
    "a normalisation": lambda model: model.decoder[1].output_norm,
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("change", KNOWN)
@pytest.mark.parametrize("precision", ["float32", "int8"])
@torch.no_grad()
def test_changed_weights_have_their_effect(change, part, precision):
    model = model_of().in_precision(precision)
    before = logits_of(model)
    layer = PARTS[part](model)
    if precision == "int8" and not isinstance(layer, nn.LayerNorm):
        if change != "in place":
            return  # weights in int8 have a scale, which such changes leave
        layer.scale.mul_(-3)
    else:
        KNOWN[change](layer)
    after = logits_of(model)
    assert isinstance(model.engine, Engine)
    assert not torch.allclose(before, after, atol=1e-3)
    model.engine = None
    torch.testing.assert_close(after, logits_of(model), rtol=1e-3, atol=1e-3)


class _Reversed(tpt.Transformer):
    def step(self, previous, state):
        return -super().step(previous, state)


def test_a_subclass_is_not_replaced_by_an_engine():
    model = model_of()
    answers = model.solve(QUESTIONS, max_length=5)
    model.__class__ = _Reversed
    assert model.solve(QUESTIONS, max_length=5) != answers
    with torch.no_grad():
        assert engine_for(model) is None


def test_gradients_autocast_traces_and_training_have_no_engine(called):
    model = model_of()
    assert engine_for(model) is None  # with gradients
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert engine_for(model) is None
        assert engine_for(model.train()) is None
        for name in ("decoder.1.self_attention.role", "encoder.0.output", "decoder.embedding"):
            del called[:]
            with model.eval().trace(name) as trace:
                model.solve(["1"], max_length=2)
                assert trace[name].shape[-2] == (3 if "encoder" in name else 2)
            assert not {"decoder_step", "decoder_greedy"} & set(called)
        assert engine_for(model) is not None


def test_modes_and_transforms_of_torch_see_the_modules():
    model = model_of()
    batch = batch_of(model)

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    def without_engine(state):
        assert engine_for(model) is None
        return state

    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad():
        for mode in (Mode(), FakeTensorMode(), FlopCounterMode(display=False)):
            with mode:
                assert engine_for(model) is None
        torch.vmap(without_engine)(torch.zeros(2))
        torch.func.jvp(without_engine, (torch.zeros(2),), (torch.zeros(2),))
        with FlopCounterMode(display=False) as counter:
            model(batch)
        assert counter.get_total_flops() > 1e6
        hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
        try:
            assert engine_for(model) is None
        finally:
            hook.remove()
        assert engine_for(model) is not None


@pytest.mark.parametrize("binding", ["residual", "tensor", "dictionary", "value"])
@torch.no_grad()
def test_other_bindings_have_no_engine(binding):
    assert engine_for(model_of(binding=binding)) is None


def test_a_model_in_training_mode_is_searched_by_an_engine(called):
    model = model_of().train()
    answers = model.solve(QUESTIONS, max_length=5)
    assert "decoder_greedy" in called
    assert all(part.training for part in model.modules())
    assert model.eval().solve(QUESTIONS, max_length=5) == answers


def test_an_engine_is_prepared_once_and_not_copied():
    """A copy has other weights, and addresses cannot be pickled."""
    model = model_of()
    answers = model.solve(QUESTIONS, max_length=5)
    prepared = model.engine
    assert model.solve(QUESTIONS, max_length=5) == answers
    assert model.engine is prepared
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.engine is True
        assert copied.solve(QUESTIONS, max_length=5) == answers


@torch.no_grad()
def test_the_memory_of_the_weights_stays_as_long_as_it_is_read():
    """The kernels may be reading while another thread casts or moves the model.

    Weights may be packed before that, or after it if there are many questions.
    """
    model = model_of()
    encoded, many = map(model.vocabulary.encode, (QUESTIONS, 4 * QUESTIONS))
    previous, found = torch.full((len(QUESTIONS),), 3), engine_for(model)
    wanted, answers = found.step(previous, begin(found)), found.greedy(encoded, 5)
    state, packed = begin(found), found.with_panels()
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter)
    other = [torch.full((size,), torch.nan) for size in (64, 4096, 16384, 65536) for _ in range(40)]
    assert torch.equal(found.step(previous, state), wanted)
    for before in (found, packed):
        assert torch.equal(before.greedy(encoded, 5), answers)
        assert torch.equal(before.greedy(many, 5), answers.repeat(4, 1))
    assert all(bool(tensor.isnan().all()) for tensor in other)


@torch.inference_mode()
def test_what_does_not_fit_is_an_error():
    model = model_of(n_positions=24)
    found = engine_for(model)
    state = begin(found, n_steps=1000)
    for ids in ([-1, 3, 3, 3, 3], [3, 3, 3, 3, model.n_vocab]):
        with pytest.raises(IndexError, match="vocabulary"):
            found.step(torch.tensor(ids), state)
    with pytest.raises(ValueError, match="5 rows, not 2"):
        found.step(torch.tensor([3, 3]), state)
    previous = torch.full((len(QUESTIONS),), 3)
    for _ in range(24):
        found.step(previous, state)
    with pytest.raises(TextError, match="24 positions"):
        found.step(previous, state)
    ids = torch.tensor([[3, 4, 5], [3, 4, model.vocabulary.pad]])
    for layout in (None, Padded.of(ids, model.vocabulary.pad)):
        with pytest.raises(ValueError, match="packed rows"):
            found.encode(ids, layout)
    with pytest.raises(TextError, match="24 positions"):
        found.encode(*lay_out(model, ["1" * 30]))
    encoded = model.vocabulary.encode(QUESTIONS)
    with pytest.raises(ValueError, match="rows from 1 to"):
        found.greedy(Ragged(encoded.ids, encoded.offsets + 1), 5)
    short = Ragged(encoded.ids.astype(np.int32), encoded.offsets)
    assert torch.equal(found.greedy(short, 5), found.greedy(encoded, 5))


def test_the_default_device_changes_nothing():
    model = model_of()
    answers = model.solve(MANY, max_length=5)
    with torch.device("meta"):
        assert model.solve(MANY, max_length=5) == answers


def test_the_kernels_know_all_modules_of_a_model():
    """A new part of a cell has to be added to the kernels, or they are never used."""
    with torch.no_grad():
        for binding in ("hadamard", "none"):
            assert engine_for(model_of(binding=binding)) is not None
    assert isinstance(model_of().encoder[0].self_attention.binding, HadamardBinding)
