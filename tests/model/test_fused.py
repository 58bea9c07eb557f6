"""The C kernel of a decoding step computes the same as the cells, and only for the known ones."""

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.data.layout.packed import Packed
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.foundation import native
from tp_transformer.model import fused
from tp_transformer.model.attention import SelfAttention
from tp_transformer.model.fused import FusedState, is_fusible
from tp_transformer.model.solver import Solver

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels are not compiled")

QUESTIONS = ["What is 3 + 4?", "Is 7 prime?", "Sort 3, -1, 7.", "Solve 2*x = 4 for x.", "1"]


def model_of(**fields):
    torch.manual_seed(0)
    return tpt.build("tp-transformer-tiny", **fields).eval()


def begin(model, n_steps=12):
    ids, layout = Packed.lay_out(model.vocabulary.encode(QUESTIONS), model.vocabulary.pad)
    return model.begin(model.encode(ids, layout), n_steps)


def begin_both(model, monkeypatch):
    """The states of the kernel and of the cells."""
    own = begin(model)
    assert isinstance(own, FusedState)
    with monkeypatch.context() as without:
        without.setattr(native, "library", lambda: None)
        other = begin(model)
    assert not isinstance(other, FusedState)
    return own, other


@pytest.mark.parametrize("binding", ["hadamard", "none"])
@torch.no_grad()
def test_steps_are_those_of_the_cells_also_when_rows_leave(monkeypatch, binding):
    model = model_of(binding=binding, embedding_binding=binding != "none")
    states = begin_both(model, monkeypatch)
    rows = torch.arange(len(QUESTIONS))
    for step in range(12):
        previous = 3 + (7 * rows + step) % 60
        logits, wanted = (model.step(previous, state) for state in states)
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)
        if step in (2, 9):
            stay = torch.tensor([3, 0, 2] if step == 2 else [1, 2])
            rows = rows[stay]
            for state in states:
                state.select(stay, stay)
    with pytest.raises(ValueError, match="12 positions"):
        model.step(previous, states[0])


@torch.no_grad()
def test_several_rows_of_a_question_share_its_memory(monkeypatch):
    model = model_of()
    states = begin_both(model, monkeypatch)
    previous = torch.full((len(QUESTIONS),), model.vocabulary.sos)
    origins = torch.arange(len(QUESTIONS)).repeat_interleave(3)
    for _ in range(3):
        logits, wanted = (model.step(previous, state) for state in states)
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)
        if len(previous) < 15:
            for state in states:
                state.select(origins, None)
        previous = 3 + torch.arange(15)


@pytest.mark.parametrize("n_words", [1, 2, 3])
@torch.no_grad()
def test_a_vocabulary_may_have_any_size(monkeypatch, n_words):
    words = ["What", "is", "3", "+", "4", "?", "Is", "7", "prime"]
    vocabulary = Vocabulary.of([*words, *map(str, range(100, 100 + n_words))], "words")
    torch.manual_seed(0)
    model = tpt.build("tp-transformer-tiny", vocabulary=vocabulary).eval()
    ids, layout = Packed.lay_out(vocabulary.encode(["What is 3", "Is 7 prime ?"]), vocabulary.pad)
    previous = torch.tensor([3, len(vocabulary) - 1])
    logits = model.step(previous, model.begin(model.encode(ids, layout), 1))
    monkeypatch.setattr(native, "library", lambda: None)
    wanted = model.step(previous, model.begin(model.encode(ids, layout), 1))
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.fixture
def called(monkeypatch):
    """The names of the kernels that are called."""
    names = []
    call = native.call
    monkeypatch.setattr(native, "call", lambda name, *rest: (names.append(name), call(name, *rest)))
    return names


@pytest.mark.parametrize("binding", ["hadamard", "none"])
@pytest.mark.parametrize("n_questions", [1, 5])
@torch.inference_mode()
def test_logits_of_known_answers_are_those_of_the_cells(monkeypatch, called, binding, n_questions):
    model = model_of(binding=binding, embedding_binding=binding != "none")
    encode = model.vocabulary.encode
    questions, answers = QUESTIONS[:n_questions], ["7", "True", "-1, 3, 7", "2", "1"][:n_questions]
    kind = model.layout_for(torch.device("cpu"), n_rows=n_questions)
    batch = tpt.Batch.from_ragged(encode(questions), encode(answers), model.vocabulary.pad, kind)
    memory, logits = model.encode(batch.source, batch.source_layout).state, model(batch)
    assert called == ["cells_forward"] * 3
    monkeypatch.setattr(native, "library", lambda: None)
    wanted = model.encode(batch.source, batch.source_layout).state
    torch.testing.assert_close(memory, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits, model(batch), rtol=1e-4, atol=1e-4)
    assert len(called) == 3


@pytest.mark.parametrize("beam", [1, 3])
def test_answers_are_those_of_the_cells(monkeypatch, beam):
    model = model_of()
    found = Solver(model).answers(QUESTIONS, beam=beam, max_length=10)
    texts = model.solve(QUESTIONS, max_length=10)
    monkeypatch.setattr(native, "library", lambda: None)
    wanted = Solver(model).answers(QUESTIONS, beam=beam, max_length=10)
    assert texts == model.solve(QUESTIONS, max_length=10)
    for ours, theirs in zip(found, wanted, strict=True):
        assert [answer.text for answer in ours] == [answer.text for answer in theirs]
        assert [answer.score for answer in ours] == pytest.approx(
            [answer.score for answer in theirs], rel=1e-4
        )


@torch.no_grad()
def test_two_threads_compute_the_same_as_one(monkeypatch):
    model = model_of()
    ids, layout = Packed.lay_out(model.vocabulary.encode(QUESTIONS * 10), model.vocabulary.pad)
    memory = model.encode(ids, layout)
    previous = 3 + torch.arange(50)
    both = []
    for n_threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n_threads: n)
        both.append(model.step(previous, model.begin(memory, 2)))
    assert torch.equal(*both)


class _SelfAttention(SelfAttention):
    def attend(self, *arguments, **options):
        output, weights = super().attend(*arguments, **options)
        return 0 * output, weights


class _Own(tpt.Transformer):
    def step(self, previous, state):
        return super().step(previous, state) + 1


def _replace_class(part, kind):
    part.__class__ = kind


CHANGES = {
    "a cell": lambda cell: _replace_class(cell, type("Own", (type(cell),), {})),
    "an attention": lambda cell: _replace_class(cell.self_attention, _SelfAttention),
    "a hook": lambda cell: cell.feed_forward.register_forward_hook(
        lambda module, inputs, output: output
    ),
    "a hook before": lambda cell: cell.register_forward_pre_hook(lambda module, inputs: inputs),
    "a method of an instance": lambda cell: setattr(
        cell.self_attention, "retrieve", lambda *inputs: inputs[0]
    ),
    "a type": lambda cell: cell.double(),
    "training": lambda cell: cell.train(),
    "a normalisation": lambda cell: setattr(cell.output_norm, "eps", 1e-3),
    "a layer": lambda cell: setattr(cell.feed_forward, "contract", torch.nn.Identity()),
    "a parametrisation": lambda cell: torch.nn.utils.parametrizations.weight_norm(
        cell.feed_forward.expand
    ),
}


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_what_a_model_changes_is_not_fused(change, stack):
    cells = list(getattr(model_of(), stack))
    assert is_fusible(cells)
    CHANGES[change](cells[1])
    assert not is_fusible(cells)


@torch.no_grad()
def test_a_step_or_an_embedding_of_its_own_is_not_fused():
    model = model_of()
    assert isinstance(begin(model), FusedState)
    model.embedding.logits = lambda state: state @ model.embedding.symbols.weight.T
    assert not isinstance(begin(model), FusedState)
    model = model_of()
    _replace_class(model, _Own)
    assert not isinstance(begin(model), FusedState)


def test_traces_gradients_and_autocast_are_not_fused(called):
    model = model_of()
    assert not isinstance(begin(model), FusedState)  # with gradients
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert not isinstance(begin(model), FusedState)
        for name in ("decoder.1.self_attention.role", "encoder.0.output", "decoder.embedding"):
            del called[:]
            with model.trace(name) as trace:
                model.solve(["1"], max_length=2)
                assert trace[name].shape[-2] == (3 if "encoder" in name else 2)
            assert "decoder_step" not in called
    assert isinstance(torch.no_grad()(begin)(model), FusedState)


@pytest.mark.parametrize("binding", ["residual", "tensor", "dictionary", "value"])
@torch.no_grad()
def test_other_bindings_are_not_fused(binding):
    assert not isinstance(begin(model_of(binding=binding)), FusedState)


@torch.no_grad()
def test_wrong_tokens_are_an_error():
    model = model_of()
    state = begin(model)
    for ids in ([-1, 3, 3, 3, 3], [3, 3, 3, 3, model.n_vocab]):
        with pytest.raises(IndexError, match="vocabulary"):
            model.step(torch.tensor(ids), state)
    with pytest.raises(ValueError, match="5 rows, not 2"):
        model.step(torch.tensor([3, 3]), state)


def test_the_kernel_knows_all_modules_of_a_decoder():
    """A new part of a cell has to be added to the kernel, or the kernel is never used."""
    model = model_of()
    kinds = {type(part) for stack in (model.encoder, model.decoder) for part in stack.modules()}
    assert kinds - {torch.nn.ModuleList} <= fused.KNOWN
