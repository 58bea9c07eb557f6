"""The C kernel of a decoding step computes the same as the cells, and only for the known ones."""

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.data.layout.packed import Packed, PackedPattern
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.foundation import native
from tp_transformer.foundation.errors import TextError
from tp_transformer.model import fused, fused_state
from tp_transformer.model.attention import Attention, CrossAttention, SelfAttention
from tp_transformer.model.binding import HadamardBinding
from tp_transformer.model.cache import KeyValueCache
from tp_transformer.model.fused import is_fusible
from tp_transformer.model.fused_state import FusedState
from tp_transformer.model.layers import DecoderCell, Embedding, EncoderCell, FeedForward
from tp_transformer.model.solver import Solver
from tp_transformer.model.trace import Traced

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


@pytest.fixture(params=["keys and values", "states"])
def what_is_read(request, monkeypatch):
    """What the steps read of the source."""
    monkeypatch.setattr(fused_state, "EXPECTED_STEPS", 0)
    many = 1 if request.param == "states" else 10**6
    monkeypatch.setattr(fused_state, "MANY_QUESTIONS", many)
    return request.param


@pytest.mark.parametrize("binding", ["hadamard", "none"])
@pytest.mark.parametrize("heads", [{}, {"d_model": 40, "n_heads": 5}, {"n_heads": 1}])
@torch.no_grad()
def test_steps_are_those_of_the_cells_also_when_rows_leave(
    monkeypatch, called, what_is_read, binding, heads
):
    model = model_of(binding=binding, embedding_binding=binding != "none", **heads)
    states = begin_both(model, monkeypatch)
    assert ("memory_forward" in called) == (what_is_read == "keys and values")
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


@pytest.mark.usefixtures("what_is_read")
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
    encoder = ["embed_forward", "cells_forward"]
    assert called == [*encoder, *encoder, "memory_forward", "cells_forward"]
    monkeypatch.setattr(native, "library", lambda: None)
    wanted = model.encode(batch.source, batch.source_layout).state
    torch.testing.assert_close(memory, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits, model(batch), rtol=1e-4, atol=1e-4)
    assert len(called) == 6


@pytest.mark.parametrize("n_copies", [2, 60])
@pytest.mark.usefixtures("what_is_read")
@torch.no_grad()
def test_equal_rows_have_the_results_of_the_cells(monkeypatch, n_copies):
    model = model_of()
    ids, layout = Packed.lay_out(model.vocabulary.encode(QUESTIONS * n_copies), 0)
    previous = 3 + torch.arange(len(layout)) % 2  # two tokens among the rows
    with monkeypatch.context() as without:
        without.setattr(native, "library", lambda: None)
        memory = model.encode(ids, layout)
        wanted, state = memory.state, model.begin(memory, 2)
        wanted_logits = [model.step(previous + step, state) for step in range(2)]
    memory = model.encode(ids, layout)
    torch.testing.assert_close(memory.state, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(*memory.state.chunk(2, dim=1))
    state = model.begin(memory, 2)
    logits = [model.step(previous + step, state) for step in range(2)]
    torch.testing.assert_close(logits, wanted_logits, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("what_is_read")
@torch.no_grad()
def test_large_layers_are_computed_in_parts(monkeypatch):
    model = model_of(d_model=576, d_ff=1040, n_layers=1)
    own, other = begin_both(model, monkeypatch)
    previous = 3 + torch.arange(len(QUESTIONS))
    logits, wanted = model.step(previous, own), model.step(previous, other)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_steps_read_states_for_many_long_sources(called):
    model = model_of(d_model=128, n_heads=2, n_positions=100)
    for n_questions, length, n_calls in ((20, 60, 0), (20, 10, 1), (2, 60, 1)):
        called.clear()
        model.solve(["1" * length] * n_questions, max_length=16)
        assert called.count("memory_forward") == n_calls


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.usefixtures("what_is_read")
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


@pytest.mark.usefixtures("what_is_read")
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
            assert not {"decoder_step", "decoder_greedy"} & set(called)
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


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((SelfAttention, "attend"), (Attention, "attend"), (Attention, "retrieve")),
        *((CrossAttention, "forward"), (EncoderCell, "forward"), (DecoderCell, "forward")),
        *((FeedForward, "forward"), (HadamardBinding, "forward"), (HadamardBinding, "__call__")),
        *((torch.nn.Linear, "forward"), (torch.nn.LayerNorm, "forward"), (Traced, "point")),
        *((torch.nn.Module, "__call__"), (Embedding, "logits"), (Packed, "within")),
        *((PackedPattern, "fillers"), (KeyValueCache, "append")),
    ],
)
@torch.no_grad()
def test_a_method_replaced_on_a_class_is_not_fused(monkeypatch, kind, name):
    cells = list(model_of().decoder)
    method = getattr(kind, name)
    with monkeypatch.context() as replaced:
        replaced.setattr(kind, name, lambda *inputs, **options: method(*inputs, **options))
        assert not is_fusible(cells)
    assert is_fusible(cells)


@torch.no_grad()
def test_a_step_replaced_on_the_class_or_the_model_is_not_given_a_fused_state(monkeypatch):
    model = model_of()
    step = tpt.Transformer.step
    with monkeypatch.context() as replaced:
        replaced.setattr(tpt.Transformer, "step", lambda *inputs: step(*inputs))
        assert not isinstance(begin(model), FusedState)
    assert isinstance(begin(model), FusedState)
    model.step = lambda *inputs: step(model, *inputs)
    assert not isinstance(begin(model), FusedState)


@torch.no_grad()
def test_a_hook_of_all_modules_is_not_fused():
    cells = list(model_of().encoder)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *inputs: None)
    try:
        assert not is_fusible(cells)
    finally:
        hook.remove()
    assert is_fusible(cells)


def _set_other_ff(model):
    for stack in (model.encoder, model.decoder):
        stack[1].feed_forward = FeedForward(model.config.d_model, 8).eval()


def _set_other_heads(model):
    for stack in (model.encoder, model.decoder):
        stack[1].self_attention.n_heads *= 2
        stack[1].self_attention.binding.d_head //= 2


SIZES = {
    "a feed-forward layer": _set_other_ff,
    "heads": _set_other_heads,
    "a norm of embeddings": lambda model: setattr(model.embedding.symbols, "max_norm", 0.5),
}


@pytest.mark.parametrize("change", SIZES)
@torch.no_grad()
def test_cells_of_different_sizes_are_not_read_as_if_they_were_equal(monkeypatch, change):
    model = model_of()
    SIZES[change](model)
    previous = 3 + torch.arange(len(QUESTIONS))
    state = begin(model)
    assert not isinstance(state, FusedState)
    logits = model.step(previous, state)
    monkeypatch.setattr(native, "library", lambda: None)
    torch.testing.assert_close(logits, model.step(previous, begin(model)), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_no_step_is_beyond_the_positions_of_the_model():
    model = model_of(n_positions=24)
    state = begin(model, n_steps=1000)
    previous = torch.full((len(QUESTIONS),), 3)
    for _ in range(24):
        model.step(previous, state)
    with pytest.raises(TextError, match="24 positions"):
        model.step(previous, state)


@pytest.mark.parametrize(
    ("rows", "questions"), [([0, 1], None), ([0, 1, 2, 3, 4, 0], None), ([0], [])]
)
@torch.no_grad()
def test_rows_that_belong_to_no_question_are_an_error(rows, questions):
    model = model_of()
    state = begin(model)
    chosen = None if questions is None else torch.tensor(questions, dtype=torch.int64)
    state.select(torch.tensor(rows), chosen)
    with pytest.raises(ValueError, match="questions"):
        model.step(torch.full((len(rows),), 3), state)


@torch.no_grad()
def test_steps_and_searches_keep_the_memory_of_the_weights():
    """The kernels may be reading while another thread casts or moves the model.

    Weights may be packed before that, or after it if there are many questions.
    """
    model = model_of()
    encoded, many = map(model.vocabulary.encode, (QUESTIONS, 4 * QUESTIONS))
    previous = torch.full((len(QUESTIONS),), 3)
    wanted, answers = model.step(previous, begin(model)), model.fused_search().greedy(encoded, 5)
    state, search, packed = begin(model), model.fused_search(), model.fused_search()
    packed.pack()
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter)
    other = [torch.full((size,), torch.nan) for size in (64, 4096, 16384, 65536) for _ in range(40)]
    assert torch.equal(model.step(previous, state), wanted)
    assert torch.equal(search.greedy(encoded, 5), answers)
    for before in (search, packed):
        assert torch.equal(before.greedy(many, 5), answers.repeat(4, 1))
    assert all(bool(tensor.isnan().all()) for tensor in other)


@torch.no_grad()
def test_there_may_be_no_question():
    model = model_of()
    encoded = model.vocabulary.encode([])
    state = model.begin(model.encode(*Packed.lay_out(encoded, model.vocabulary.pad)), 5)
    assert model.step(torch.empty(0, dtype=torch.int64), state).shape == (0, 72)
    assert model.fused_search().greedy(encoded, 5).shape == (0, 0)


@torch.no_grad()
def test_rows_of_questions_and_answers_must_be_the_same():
    model = model_of()
    pad, encode = model.vocabulary.pad, model.vocabulary.encode
    memory = model.encode(*Packed.lay_out(encode(QUESTIONS[:2]), pad))
    ids, layout = Packed.lay_out(encode(QUESTIONS), pad)
    with pytest.raises(ValueError, match="5 rows of queries cannot attend to 2 rows"):
        model.decode(ids, memory, layout)


@pytest.mark.parametrize("n_rows", [17, 49, 50, 99])
@torch.no_grad()
def test_the_number_of_threads_changes_nothing_in_large_layers(monkeypatch, n_rows):
    """Few rows are added in another order than many: no thread may be left with few."""
    model = model_of(d_ff=1032, n_layers=1)
    encoded = model.vocabulary.encode(["1"] * n_rows)
    memory = model.encode(*Packed.lay_out(encoded, model.vocabulary.pad))
    found = []
    for n_threads in (1, 2, 3, 100):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n_threads: n)
        found.append(model.step(3 + torch.arange(n_rows) % 60, model.begin(memory, 2)))
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@torch.no_grad()
def test_a_graph_recorded_by_jit_has_the_operations_of_the_cells():
    model = model_of()

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model.encode(ids).state

    ids = torch.tensor([[3, 4, 5]])
    graph = torch.jit.trace(Encoder().eval(), ids, check_trace=False)
    wanted = model.encode(ids + 1).state
    torch.testing.assert_close(graph(ids + 1), wanted, rtol=1e-4, atol=1e-5)
