"""Operations on roles: what the page answers is what its printed Python answers."""

import json

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.report.explorer.page import Page

QUESTION = "What is 12 + 7?"
ROLE = [round(0.3 * i - 1, 3) for i in range(9)]


def operation(point, head, position, kind, **more):
    return {"point": point, "head": head, "position": position, "kind": kind, **more}


ENCODER, LAST = "encoder.0.self_attention", "encoder.1.self_attention"
CROSS, DECODER = "decoder.1.cross_attention", "decoder.0.self_attention"
CASES = {
    "zero": [operation(ENCODER, 2, 9, "zero")],
    "zero in all heads at all characters": [operation(ENCODER, None, None, "zero")],
    "scale": [operation(LAST, None, 8, "scale", factor=-25)],
    "swap": [operation(ENCODER, None, 8, "swap", other=13), operation(LAST, 1, 3, "swap", other=8)],
    "set": [operation(LAST, None, None, "set", vector=ROLE)],
    "decoder": [operation(DECODER, None, 1, "scale", factor=40)],
    "cross": [operation(CROSS, None, 0, "scale", factor=-30), operation(CROSS, 0, 1, "zero")],
    "cross at all steps": [operation(CROSS, None, None, "scale", factor=-3)],
    "several": [
        operation(ENCODER, 2, 9, "zero"),
        operation(CROSS, None, 1, "set", vector=ROLE),
        operation(ENCODER, None, 9, "scale", factor=0.5),
        operation(ENCODER, None, 9, "swap", other=1),
    ],
}


def of_values(operations):
    """The same for a model without roles, whose cross-attention has no vectors of its own."""
    return [each for each in operations if "cross" not in each["point"]]


def show(explorer, model, operations):
    panes = json.dumps([{"model": model, "question": QUESTION, "operations": operations}])
    state = f"{{ panes: {panes}, view: explorer.app.state.view }}"
    explorer.run(f"explorer.app.restore(() => ({state}), 'It')")
    explorer.settle()


@pytest.fixture(scope="module", autouse=True)
def opened(explorer):
    explorer.reset()


@pytest.mark.parametrize("model", [0, 1], ids=["roles", "values"])
@pytest.mark.parametrize("name", CASES)
def test_the_printed_python_gives_the_same_answer(explorer, folders, capsys, name, model):
    operations = CASES[name] if model == 0 else of_values(CASES[name])
    show(explorer, model, operations)
    code = explorer.text("#python")
    exec(compile(code, "printed", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == explorer.answer() + "\n"
    assert str(folders[model]) in code
    assert code.count("vector[:") >= len(operations)


OTHER_BINDINGS = {  # whose roles have other sizes or places, or that have none
    "constant": {"binding": "constant"},
    "per-head": {"binding": "sigmoid", "per_head": True},
    "value": {"binding": "value"},
    "dictionary": {"binding": "dictionary", "n_roles": 5},
}


@pytest.fixture
def other_bindings(browser, explorer, shape, tmp_path):
    """A page with a model of each of these bindings, and the models' folders."""
    torch.manual_seed(2)
    folders = [tmp_path / name for name in OTHER_BINDINGS]
    models = [tpt.build("tp-transformer-tiny", **shape, **each) for each in OTHER_BINDINGS.values()]
    for model, folder in zip(models, folders, strict=True):
        model.eval().save(folder)
    Page(models=models, folders=folders).write(tmp_path / "page.html")
    page = type(explorer)(browser, (tmp_path / "page.html").as_uri())
    page.open()
    yield page, folders
    explorer.reset()


def test_printed_python_gives_the_same_answer_with_other_bindings(other_bindings, capsys):
    page, folders = other_bindings
    for model, folder in enumerate(folders):
        has_cross = folder.name not in ("constant", "value")
        size = {"per-head": 1, "dictionary": 5}.get(folder.name, 9)
        operations = [
            operation(ENCODER, None, None, "scale", factor=-20),
            operation(LAST, 1, 3, "swap", other=8),
            operation(LAST, 2, 4, "set", vector=[3.5] * size),
            operation(CROSS if has_cross else DECODER, None, 1, "scale", factor=30),
        ]
        show(page, model, operations)
        names = {}
        exec(compile(page.text("#python"), "printed", "exec"), names)  # noqa: S102
        assert capsys.readouterr().out == page.answer() + "\n"
        weights = f"{LAST}.weights"  # an untrained model may answer the same in spite of all
        with names["model"].trace(weights, edit=names["edits"]) as edited:
            names["model"].solve([QUESTION])
        with names["model"].trace(weights) as plain:
            names["model"].solve([QUESTION])
        assert not torch.allclose(plain[weights], edited[weights], atol=0.01)
        found = page.run(f"Array.from(explorer.app.panes[0].result.points['{LAST}'].weights)")
        wanted = edited[weights].flatten()
        torch.testing.assert_close(torch.tensor(found), wanted, rtol=0, atol=1e-4)
        if not has_cross:
            page.run("explorer.app.look({point: 'decoder.1.cross_attention'})")
            assert "belong to the keys" in page.text("#vector")
    assert page.problems() == []


def test_operations_change_answers_and_attention(explorer, folders):
    """Otherwise the test above would hold if neither side did anything."""
    (plain,) = tpt.load(folders[0]).solve([QUESTION])
    changed = 0
    for operations in CASES.values():
        show(explorer, 0, operations)
        changed += explorer.answer() != plain
        moved = explorer.run(
            """(({ result, base }) =>
              Object.entries(result.points).some(([path, { weights }]) =>
                weights.some((weight, i) => Math.abs(weight - base.points[path].weights[i]) > 1e-4),
              ))(explorer.app.panes[0])"""
        )
        assert moved or operations == CASES["decoder"]
    assert changed >= 4


def test_the_legend_says_that_nothing_has_changed_yet(explorer):
    show(explorer, 0, [])
    explorer.run("explorer.app.look({ difference: true })")
    assert "no operations yet" in explorer.text("#legend")
    show(explorer, 0, CASES["zero"])
    explorer.run("explorer.app.look({ difference: true })")
    assert "blue is more attention" in explorer.text("#legend")
    explorer.run("explorer.app.look({ difference: false })")


def test_the_roles_after_an_operation_are_those_of_a_trace(explorer, folders):
    show(explorer, 0, CASES["several"])
    found = explorer.run(f"Array.from(explorer.app.panes[0].result.points['{ENCODER}'].vectors)")
    model = tpt.load(folders[0])

    def edit(role):
        role[:, 2, 9] = 0
        role[:, :, 9] *= 0.5
        role[:, :, [9, 1]] = role[:, :, [1, 9]]
        return role

    name = f"{ENCODER}.role"
    with model.trace(name, edit={name: edit}) as trace:
        model.solve([QUESTION])
    wanted = trace[name][0]
    torch.testing.assert_close(torch.tensor(found).view(wanted.shape), wanted, rtol=0, atol=1e-4)


def test_each_button_adds_its_operation_and_undo_takes_it_back(explorer):
    show(explorer, 0, [])
    plain = explorer.answer()
    explorer.run("explorer.app.look({point: 'encoder.0.self_attention', head: 2, position: 9})")
    buttons = ["Zero", "Scale by", "Swap with", "Set to centroid"]
    assert explorer.texts("#operate .operation button") == buttons
    for number in range(1, 5):
        explorer.run(
            f"document.querySelectorAll('#operate .operation button')[{number - 1}].click()"
        )
        explorer.settle()
        assert len(explorer.texts("#operations li button")) == number
    kinds = explorer.run("explorer.app.state.panes[0].operations.map(({ kind }) => kind)")
    assert kinds == ["zero", "scale", "swap", "set"]
    first = explorer.run("explorer.app.state.panes[0].operations[0]")
    assert first == operation(ENCODER, 2, 9, "zero")
    for number in (3, 2, 1, 0):
        explorer.click("#undo")
        assert len(explorer.texts("#operations li button")) == number
    assert explorer.answer() == plain
    assert "trace" not in explorer.text("#python")


def test_an_operation_beyond_a_shorter_question_waits(explorer):
    show(explorer, 0, [operation(ENCODER, 2, 13, "zero")])
    explorer.run("explorer.app.ask(0, '1 + 1')")
    explorer.settle()
    assert "beyond the end" in explorer.text("#operations")
    assert "trace" not in explorer.text("#python")
