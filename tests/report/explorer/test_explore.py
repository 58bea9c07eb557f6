"""`tpt explore`: what goes into the page, what is refused, and the local server."""

import base64
import http.client
import json
import shutil
import threading

import numpy as np
import pytest

import tp_transformer as tpt
from corpora import make_store
from tp_transformer import cli
from tp_transformer.data.mathematics.modules import MODULES
from tp_transformer.interpret import roles
from tp_transformer.interpret.core.record import record
from tp_transformer.interpret.core.sample import Sample, drawn_sample
from tp_transformer.model.binding import BINDINGS, HadamardBinding
from tp_transformer.model.solver import Answer, SolvedQuestion
from tp_transformer.report.explorer import contents, packing
from tp_transformer.report.explorer.contents import EXAMPLE_SEED, example_questions
from tp_transformer.report.explorer.page import make_page
from tp_transformer.report.explorer.server import serving
from tp_transformer.report.roles import most_structural
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.study import bundle as bundling

NESTED = ["(2/3)/(5/7)", "(7/2)/(3/9)", "(8/5)/(6/4)"]


def run(capsys, *arguments):
    """The exit code and the lines on standard error of `tpt explore`."""
    code = 0
    try:
        cli.main(["explore", *map(str, arguments)])
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr().err.splitlines()


def data_of(page):
    """The data block of a page."""
    text = b"".join(page.parts()).decode()
    start = text.index(">", text.index('id="data"')) + 1
    return json.loads(text[start : text.index("</script>", start)])


def test_one_file_is_written(folders, tmp_path, capsys):
    out = tmp_path / "explorer.html"
    assert run(capsys, "--model", folders[0], "--out", out) == (0, [])
    text = out.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_only_a_page_is_replaced(folders, tmp_path, capsys):
    out = tmp_path / "explorer.html"
    out.write_text("mine")
    for file, said in ((out, "is not a page of the explorer"), (tmp_path, "is a folder")):
        code, lines = run(capsys, "--model", folders[0], "--out", file)
        assert (code, len(lines)) == (2, 1)
        assert said in lines[0]
    assert out.read_text() == "mine"
    assert run(capsys, "--model", folders[0], "--out", out, "--overwrite")[0] == 0
    first = out.read_bytes()
    assert run(capsys, "--model", folders[1], "--out", out) == (0, [])
    assert out.read_bytes() != first


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "{lstm}"], "does not support"),
        (["--model", "{tp}", "--beside", "{lstm}"], "does not support"),
        (["--model", "{tp}", "--roles", "{junk}"], "holds no clusters of roles"),
        (["--model", "{tp}", "--roles", "{nowhere}"], "cannot read"),
        (["--model", "{tp}", "--results", "{junk}"], "--results needs --data"),
        (["--model", "{tp}", "--port", "70000"], "port"),
        (["--model", "{nowhere}"], "there is no model folder"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(folders, tmp_path, capsys, arguments, said):
    tpt.build("lstm-saxton", d_hidden=8).save(tmp_path / "lstm")
    (tmp_path / "junk").write_text("{}")
    places = {
        "lstm": tmp_path / "lstm",
        "tp": folders[0],
        "junk": tmp_path / "junk",
        "nowhere": tmp_path / "nowhere",
    }
    out = tmp_path / "explorer.html"
    given = [argument.format(**places) for argument in arguments]
    code, lines = run(capsys, *given, "--out", out)
    assert (code, len(lines)) == (2, 1)
    assert said in lines[0]
    assert not out.exists()


def test_a_binding_or_a_field_that_the_page_does_not_compute_is_refused(monkeypatch):
    monkeypatch.setitem(BINDINGS._entries, "other", HadamardBinding)
    for model, said in (
        (tpt.build("tp-transformer-tiny", binding="other"), "its binding is other"),
        (type("Derived", (tpt.Transformer,), {})(tpt.TransformerConfig(d_model=8)), "Derived"),
    ):
        with pytest.raises(tpt.UserError, match=said):
            packing.require_supported(model, "it")
    monkeypatch.setattr(packing, "IRRELEVANT_FIELDS", packing.IRRELEVANT_FIELDS - {"d_ff"})
    with pytest.raises(tpt.UserError, match="its d_ff is 256"):
        packing.require_supported(tpt.build("tp-transformer-tiny"), "it")


def test_weights_are_all_there_in_their_order(folders, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", 3000)
    model = tpt.load(folders[0])
    joined = b"".join(map(base64.b64decode, packing.weights(model)))
    wanted = np.concatenate([t.numpy().ravel() for t in model.state_dict().values()])
    assert np.array_equal(np.frombuffer(joined, "<f4"), wanted)
    shapes = [tuple(each["shape"]) for each in packing.described(model, "it")["tensors"]]
    assert shapes == [tuple(t.shape) for t in model.state_dict().values()]


def test_the_page_opens_on_a_fraction_that_the_model_answers(folders, monkeypatch):
    offered = drawn_sample(contents.OFFERED, seed=0)
    right = dict(zip(offered.questions, offered.answers, strict=True))
    known = offered.questions[5:7]

    def solve(model, asked, noun):
        (listed,) = asked
        yield SolvedQuestion(question=listed[0], error="it cannot be read")
        for text in listed[1:]:
            said = right[text] if text in known else "0"
            answer = Answer(text=said, log_probability=0.0, score=0.0, is_complete=True)
            yield SolvedQuestion(question=text, answers=(answer,))

    monkeypatch.setattr(contents, "solve_each", solve)
    assert data_of(make_page(folders[0]))["opening"] == known[0]
    known = ()
    assert data_of(make_page(folders[0]))["opening"] is None


def test_a_bundled_model_has_its_clusters(folders, tmp_path, monkeypatch):
    shutil.copytree(folders[0], tmp_path / "model")
    model = tpt.load(tmp_path / "model")
    monkeypatch.setattr(bundling, "draw", lambda model, _: Sample.of(NESTED, model))
    clusters = bundling._roles(model, None)
    (tmp_path / "model" / "roles.json").write_text(json.dumps(clusters))
    shown = data_of(make_page(tmp_path / "model"))["roles"]
    assert shown["layer"] == model.config.n_layers - 1
    assert len(shown["heads"]) == model.config.n_heads

    def none_answered(*_):
        raise tpt.UserError("the model answers none")

    monkeypatch.setattr(bundling, "draw", none_answered)
    assert bundling._roles(model, None) is None


def test_clusters_come_from_the_roles_analysis(folders, tmp_path, capsys):
    model = tpt.build("tp-transformer-tiny", d_model=8, d_ff=8, n_heads=2, n_layers=1).eval()
    model.save(tmp_path / "model")
    found = roles(model, NESTED, clusters=3)
    file = tmp_path / "roles.json"
    file.write_text(json.dumps(found.to_json()))
    shown = data_of(make_page(tmp_path / "model", roles=file))["roles"]
    assert shown["layer"] == 0
    assert shown["head"] == most_structural(found.heads).head
    name = "encoder.0.self_attention.role"
    vectors = record(model, Sample.of(NESTED, model), [name]).flat(name)
    for head, wanted in zip(shown["heads"], found.heads, strict=True):
        apart = np.square(vectors[:, head["head"], None] - np.array(head["centroids"])).sum(axis=-1)
        assert np.array_equal(apart.argmin(axis=1), np.concatenate(wanted.assigned))
        assert len(head["names"]) == 3
    code, lines = run(capsys, "--model", folders[0], "--roles", file, "--out", tmp_path / "x.html")
    assert code == 2
    assert "made with another model" in lines[0]


def test_questions_come_from_an_evaluation_wrong_ones_first(folders, tmp_path):
    """Of 60 questions, every third has the model's own answer as the right one."""
    questions = [f"What is {a} + {b}?" for a in range(6) for b in range(10)]
    said = tpt.load(folders[0]).solve(questions)
    pairs = [
        (question, own if place % 3 == 0 else f"{own}0")
        for place, (question, own) in enumerate(zip(questions, said, strict=True))
    ]
    keys = [
        ("interpolate", "arithmetic__add_or_sub"),
        ("extrapolate", "arithmetic__add_or_sub_big"),
    ]
    store = make_store(tmp_path / "store", {(*key, None): pairs for key in keys})
    evaluate(folders[0], store, tmp_path / "results.json")
    found = make_page(folders[0], results=tmp_path / "results.json", data=store).questions
    assert [each["right"] for each in found] == [False] * 40  # 20 of each module
    assert {each["split"] for each in found} == {"interpolate", "extrapolate"}
    wrong = [pair for place, pair in enumerate(pairs) if place % 3][:20]
    assert [(each["question"], each["answer"]) for each in found[:20]] == wrong
    other = make_store(tmp_path / "other", {(*key, None): pairs[1:] for key in keys})
    with pytest.raises(tpt.UserError, match="does not hold the questions"):
        make_page(folders[0], results=tmp_path / "results.json", data=other)


def test_examples_come_from_a_store(folders, tmp_path):
    pairs = [(f"Work out ({a}/7)/(5/{b}).", "1") for a in range(5) for b in range(5)]
    keys = [("interpolate", "arithmetic__mul"), ("extrapolate", "arithmetic__mul_big")]
    store = make_store(tmp_path / "store", {(*key, None): pairs for key in keys})
    wanted = [{"module": "arithmetic__mul", "question": q, "answer": a} for q, a in pairs[:20]]
    assert make_page(folders[0], data=store).examples == wanted
    keys = [("train", "arithmetic__mul")]
    store = make_store(tmp_path / "other", {(*key, "easy"): pairs[:3] for key in keys})
    assert make_page(folders[0], data=store).examples == wanted[:3]


def test_the_examples_are_what_the_generator_gives():
    examples = example_questions()
    assert [each["module"] for each in examples] == [m.name for m in MODULES for _ in range(2)]
    for start in (0, 22, 80):
        module = examples[start]["module"]
        again = tpt.data.generate(module, split="interpolate", count=2, seed=EXAMPLE_SEED)
        questions = [each["question"] for each in examples[start : start + 2]]
        assert [each.question for each in again] == questions


@pytest.fixture
def server():
    with serving(b"<!doctype html>", "default-src 'none'", 0) as started:
        thread = threading.Thread(target=started.serve_forever, daemon=True)
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def answer(server, path="/", host=None):
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_the_server_serves_the_page_on_loopback_with_its_policy(server):
    assert server.server_address[0] == "127.0.0.1"
    response, body = answer(server)
    assert (response.status, body) == (200, b"<!doctype html>")
    policy = response.headers["Content-Security-Policy"]
    assert policy == "default-src 'none'; frame-ancestors 'none'"
    assert answer(server, host=f"localhost:{server.server_address[1]}")[0].status == 200


def test_the_server_serves_nothing_else(server):
    for path in ("/x", "/../etc/passwd", "/?x", "http://evil.example/"):
        assert answer(server, path)[0].status == 404
    for host in ("evil.example", "127.0.0.1", f"evil.example:{server.server_address[1]}"):
        assert answer(server, host=host)[0].status == 403


def test_a_port_in_use_is_said(server):
    with (
        pytest.raises(tpt.UserError, match="cannot listen on port"),
        serving(b"", "", server.server_address[1]),
    ):
        pass
