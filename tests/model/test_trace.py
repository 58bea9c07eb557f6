"""Traces: what they read, what they replace, and that they cost nothing otherwise."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.errors import TraceError
from tp_transformer.model import attention
from tp_transformer.model.attention import attention_weights
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.search import greedy
from tp_transformer.model.trace import trace
from variants import DISTINCT

QUESTIONS = ["What is 3 + 4?", "Hi", "Let p be 12."]
HEADS, D_HEAD = 4, 16


def model_of(binding="hadamard"):
    rank = 3 if binding == "low-rank" else None
    return tpt.build("tp-transformer-tiny", binding=binding, rank=rank).double().eval()


def batch_for(model):
    return tpt.Batch.from_text(QUESTIONS, ["7", "-12", "x + 1"], model.vocabulary)


@pytest.mark.parametrize("binding", BINDINGS)
def test_names_are_the_designs(binding):
    parts = ["query", "key", "value", "role", "weights", "filler", "bound", "output"]
    if binding in {"none", "constant"}:
        parts.remove("role")
    expected = {"embedding", "decoder.embedding"}
    for layer in range(2):
        expected |= {f"encoder.{layer}.output", f"decoder.{layer}.output"}
        expected |= {f"encoder.{layer}.self_attention.{part}" for part in parts}
        expected |= {f"decoder.{layer}.self_attention.{part}" for part in parts}
        expected |= {f"decoder.{layer}.cross_attention.{part}" for part in parts}
    names = model_of(binding).trace_names
    assert set(names) == expected
    assert len(names) == len(expected)


@pytest.mark.parametrize("binding", BINDINGS)
def test_every_name_is_recorded_under_forward_with_its_shape(binding):
    model = model_of(binding)
    batch = batch_for(model)
    with model.trace(*model.trace_names) as trace:
        model(batch)
    source, target = batch.source.shape[1], batch.target_input.shape[1]
    sizes = model.encoder[0].self_attention.binding
    for name in model.trace_names:
        length = target if name.startswith("decoder") else source
        if ".cross_attention.key" in name or ".cross_attention.value" in name:
            length = source
        if binding == "value" and name.endswith(".cross_attention.role"):
            length = source
        keys = source if "encoder" in name or "cross" in name else target
        special = {"weights": keys, "bound": sizes.d_bound, "role": sizes.d_role}
        last = special.get(name.split(".")[-1], D_HEAD)
        in_heads = "attention" in name and not name.endswith("output")
        expected = (3, HEADS, length, last) if in_heads else (3, length, 64)
        assert trace[name].shape == expected, name


@pytest.mark.parametrize("binding", BINDINGS)
def test_recorded_tensors_obey_the_equations(binding):
    model = model_of(binding)
    batch = batch_for(model)
    with model.trace("*") as trace:
        model(batch)
    for path in ("encoder.1.self_attention", "decoder.0.cross_attention"):
        at = {part: f"{path}.{part}" for part in ("weights", "value", "filler", "bound")}
        module = model.get_submodule(path)
        role = trace[f"{path}.role"] if module.binding.d_role else None
        value = trace[at["value"]]
        if binding == "value":
            value = module.binding(value, role)
        filler = trace[at["weights"]] @ value
        torch.testing.assert_close(trace[at["filler"]], filler)
        bound = filler if binding == "value" else module.binding(filler, role)
        torch.testing.assert_close(trace[at["bound"]], bound)
        output = module.out_proj(trace[at["bound"]].transpose(1, 2).flatten(2))
        torch.testing.assert_close(trace[f"{path}.output"], output)


@pytest.mark.parametrize("binding", BINDINGS)
def test_solving_records_what_teacher_forcing_does(binding):
    """All that solving computes step by step is, joined, what one pass computes at once."""
    model = model_of(binding)
    source = batch_for(model).source
    with model.trace(*model.trace_names) as solving:
        model.solve(QUESTIONS, max_length=5)
    with torch.no_grad():
        written = greedy(model, source, 5)
    assert written.shape == (3, 5)
    target = torch.cat([torch.full((3, 1), model.vocabulary.sos), written[:, :4]], dim=1)
    with model.trace(*model.trace_names) as forcing:
        model.decode(target, model.encode(source))
    for name in model.trace_names:
        torch.testing.assert_close(solving[name], forcing[name], rtol=1e-8, atol=1e-10, msg=name)


def test_solving_traces_in_the_callers_order_and_padded():
    model = model_of()
    name = "encoder.1.self_attention.role"
    with model.trace(name) as trace:
        model.solve(QUESTIONS)
    assert trace[name].shape == (3, HEADS, len(QUESTIONS[0]) + 2, D_HEAD)
    for row, question in enumerate(QUESTIONS):
        with model.trace(name) as alone:
            model.solve([question])
        length = len(question) + 2
        torch.testing.assert_close(trace[name][row, :, :length], alone[name][0])


@pytest.mark.parametrize("call", ["forward", "solve"])
@pytest.mark.parametrize("binding", DISTINCT)
def test_every_point_can_be_replaced(binding, call):
    model = model_of(binding)
    batch = batch_for(model)

    def outcome():
        if call == "forward":
            return model(batch)
        with model.trace("decoder.1.output") as trace:
            model.solve(QUESTIONS, max_length=3)
            return trace["decoder.1.output"]

    before = outcome()
    for name in model.trace_names:
        with model.trace(name, edit={name: lambda tensor: torch.full_like(tensor, 0.5)}) as trace:
            after = outcome()
        expected = torch.full_like(trace[name], 0.5)
        if call == "solve" and name.startswith("decoder") and "self_attention.weights" in name:
            expected = expected.tril()  # a step cannot replace weights on keys still to come
        assert torch.equal(trace[name], expected), name
        assert (before - after).abs().max() > 1e-9, name
    assert torch.equal(outcome(), before)  # no edit is left


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_shows_the_last_call(dtype):
    model = model_of().to(dtype)
    with model.trace("encoder.0.output", "decoder.0.output") as trace:
        model.solve(QUESTIONS)
        model.solve(["1"], max_length=2)
    assert trace["encoder.0.output"].shape == (1, 3, 64)
    assert trace["decoder.0.output"].shape == (1, 2, 64)


def test_nested_traces_both_see_the_outer_edit():
    model = model_of()
    name = "encoder.0.self_attention.role"
    with model.trace(name, edit={name: torch.ones_like}) as outer:
        with model.trace(name, edit={name: lambda role: role * 3}) as inner:
            model.solve(["1"])
        assert outer[name].eq(1).all()
        assert inner[name].eq(3).all()
        model.solve(["12"])
        assert outer[name].shape[2] == 4
        assert inner[name].shape[2] == 3


def test_nested_traces_of_different_roots_keep_their_names():
    model = model_of()
    name = "encoder.0.self_attention.role"
    with model.trace(name, edit={name: torch.ones_like}) as outer:
        with trace(model.encoder, "0.self_attention.role", "1.output") as inner:
            model.solve(QUESTIONS)
        assert outer[name].eq(1).all()
        assert inner["0.self_attention.role"].eq(1).all()
    with model.trace("encoder.1.output") as whole:
        model.solve(QUESTIONS)
    assert inner["1.output"].shape == whole["encoder.1.output"].shape


def test_what_is_recorded_is_no_view_and_edits_in_place_do_no_harm():
    model = model_of("none")
    batch = batch_for(model)
    at = "encoder.0.self_attention."
    with model.trace(at + "query", at + "filler", edit={at + "bound": torch.Tensor.zero_}) as got:
        model(batch).sum().backward()
    assert got[at + "query"].untyped_storage().nbytes() == got[at + "query"].nbytes
    assert got[at + "filler"].abs().max() > 0


def test_leaving_traces_in_another_order_leaves_the_right_one():
    model = model_of()
    first, second = model.trace("embedding"), model.trace("embedding")
    first.__enter__()
    kept = second.__enter__()
    first.__exit__(None, None, None)
    model.solve(["12"])
    assert kept["embedding"].shape == (1, 4, 64)
    second.__exit__(None, None, None)
    assert not any(getattr(module, "_traces", ()) for module in model.modules())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"embedding": 3}, "must be a function"),
        ({"embed*": torch.zeros_like, "embedding": torch.zeros_like}, "two edits"),
    ],
)
def test_edits_that_cannot_be_are_refused_at_once(edit, message):
    with pytest.raises(TraceError, match=message):
        model_of().trace(edit=edit).__enter__()


def test_gradients_flow_to_what_was_recorded():
    model = model_of()
    batch = batch_for(model)
    name = "encoder.0.self_attention.role"
    with model.trace(name) as trace:
        loss = model.loss(batch).mean
    (gradient,) = torch.autograd.grad(loss, trace[name])
    assert gradient.abs().max() > 0


def test_unknown_names_list_the_valid_ones():
    model = model_of("none")
    with pytest.raises(TraceError) as error, model.trace("encoder.0.self_attention.role"):
        pass
    assert all(name in str(error.value) for name in model.trace_names)
    assert "\n" not in str(error.value)
    with pytest.raises(TraceError, match=r"did you mean 'encoder\.0\.output'"):
        model.trace("encoder.0.outptu").__enter__()
    with pytest.raises(TraceError, match="no trace point 'no'"):
        model.trace(edit={"no": torch.zeros_like}).__enter__()


def test_a_trace_says_what_it_does_not_hold():
    model = model_of()
    with model.trace("embedding") as trace:
        with pytest.raises(TraceError, match="not been passed yet"):
            trace["embedding"]
        with pytest.raises(TraceError, match="not recorded by this trace"):
            trace["encoder.0.output"]


@pytest.mark.parametrize("wrong", [lambda x: x[..., :1], lambda x: None, torch.Tensor.float])
def test_an_edit_must_keep_shape_and_type(wrong):
    model = model_of()
    with model.trace(edit={"embedding": wrong}), pytest.raises(TraceError, match="must return"):
        model.solve(["1"])


def test_weights_are_computed_only_when_asked_for(monkeypatch):
    """Without a trace the fused attention runs, which never holds the weights."""
    calls = []
    monkeypatch.setattr(
        attention, "attention_weights", lambda *a: calls.append(1) or attention_weights(*a)
    )
    model = model_of()
    model.solve(["1"], max_length=1)
    with model.trace("encoder.0.self_attention.role"):
        model.solve(["1"], max_length=1)
    assert not calls
    with model.trace("encoder.0.self_attention.weights"):
        model.solve(["1"], max_length=1)
    assert len(calls) == 1


def test_two_threads_trace_one_model_without_mixing():
    model = model_of()
    name = "encoder.0.self_attention.role"
    inside = threading.Barrier(2)  # both have begun to trace before either calls the model

    def traced(question, factor):
        with model.trace(name, edit={name: lambda role: factor * role}) as trace:
            inside.wait()
            model.solve([question], max_length=2)
            inside.wait()
        return trace[name]

    questions = ["What is 3 + 4?", "Is 7 prime?"]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(traced, questions, (2.0, -1.0)))
    for question, factor, ours in zip(questions, (2.0, -1.0), found, strict=True):
        with model.trace(name) as alone:
            model.solve([question], max_length=2)
        torch.testing.assert_close(ours, factor * alone[name])


def labels(drawn):
    """The tokens at the rows and columns of a heat map, in order."""
    axes = drawn.axes[0]
    columns = [text.get_text() for text in axes.get_xticklabels()]
    rows = [
        (tick, text.get_text())
        for which in (False, True)
        for tick, text in zip(
            axes.get_yticks(minor=which), axes.get_yticklabels(minor=which), strict=True
        )
    ]
    return [text for _, text in sorted(rows)], columns


def test_a_trace_is_like_a_dictionary():
    model = model_of()
    names = ["embedding", "encoder.1.output"]
    with model.trace(*names) as trace:
        model(batch_for(model))
    assert list(trace.keys()) == list(trace) == names
    assert len(trace) == 2
    assert [name for name, _ in trace.items()] == names
    assert all(torch.equal(tensor, trace[name]) for name, tensor in trace.items())
    assert set(dict(trace)) == set(names)


@pytest.mark.parametrize("call", ["forward", "solve"])
def test_attention_weights_are_plotted_with_their_tokens(call):
    model = model_of()
    with model.trace("*.weights") as trace:
        if call == "forward":
            model(batch_for(model))
            targets = ["#7", "#-12", "#x + 1"]
        else:
            targets = ["#" + answer for answer in model.solve(QUESTIONS, max_length=3)]
            # The last token of an answer that was cut short has not been read.
            targets = [target[:3] for target in targets]
    for row, question in enumerate(QUESTIONS):
        source, target = [*f"#{question}%"], [*targets[row]]
        expected = {
            "encoder.1.self_attention.weights": (source, source),
            "decoder.0.self_attention.weights": (target, target),
            "decoder.1.cross_attention.weights": (target, source),
        }
        for name, tokens in expected.items():
            drawn = trace.plot(name, question=row, head=3)
            assert labels(drawn) == tokens, name
            shown = drawn.axes[0].images[0].get_array()
            own = trace[name][row, 3, : len(tokens[0]), : len(tokens[1])]
            torch.testing.assert_close(torch.tensor(shown.data), own.float())


def test_weights_of_a_module_without_tokens_are_plotted_with_numbers():
    attention = tpt.TPMultiheadAttention(8, 2, batch_first=True)
    with trace(attention, "weights") as traced:
        attention(*[torch.randn(1, 3, 8)] * 3)
    (name,) = traced.keys()
    assert labels(traced.plot(name)) == (["0", "1", "2"], ["0", "1", "2"])


def test_what_cannot_be_plotted_is_said():
    model = model_of()
    with model.trace("embedding", "encoder.0.self_attention.weights") as trace:
        model(batch_for(model))
    with pytest.raises(TraceError, match="only attention weights"):
        trace.plot("embedding")
    with pytest.raises(TraceError, match="questions 0 to 2, not 3"):
        trace.plot("encoder.0.self_attention.weights", question=3)
    with pytest.raises(TraceError, match="heads 0 to 3, not 4"):
        trace.plot("encoder.0.self_attention.weights", head=4)
    with pytest.raises(TraceError, match="not recorded"):
        trace.plot("encoder.1.self_attention.weights")


def test_a_trace_as_text_and_in_a_notebook():
    model = tpt.build("tp-transformer-tiny", n_layers=1)
    with model.trace("encoder.*.self_attention.role", "embedding") as trace:
        assert "embedding: not passed yet" in repr(trace)
        model.solve(["What is 3 + 4?"])
    shape = tuple(trace["encoder.0.self_attention.role"].shape)
    assert f"encoder.0.self_attention.role: {shape}" in repr(trace)
    assert f"<td>encoder.0.self_attention.role</td><td>{shape}</td>" in trace._repr_html_()
    assert "not passed" not in trace._repr_html_()
