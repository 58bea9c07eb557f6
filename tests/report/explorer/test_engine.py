"""The forward pass in the browser computes what PyTorch computes."""

import base64
import json
import random

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import tp_transformer as tpt
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.report.explorer import packing
from tp_transformer.report.explorer.contents import example_questions
from tp_transformer.report.explorer.page import Page

MODELS = {
    "none": {"binding": "none", "embedding_binding": False},
    "constant": {"binding": "constant"},
    "hadamard": {"binding": "hadamard"},
    "residual": {"binding": "residual"},
    "sigmoid": {"binding": "sigmoid"},
    "sigmoid-per-head": {"binding": "sigmoid", "per_head": True},
    "silu": {"binding": "silu"},
    "value": {"binding": "value"},
    "dictionary": {"binding": "dictionary", "n_roles": 5},
    "dictionary-fused": {"binding": "dictionary", "n_roles": 9},
    "tensor": {"binding": "tensor"},
    "low-rank": {"binding": "low-rank", "rank": 7},
    "convolution": {"binding": "convolution"},
    "plain-embedding": {"binding": "hadamard", "embedding_binding": False},
}
WORDS = ["jump", "left", "twice", "<b>", "after"]
TOLERANCE = 1e-4


def asked(count):
    """Different questions: examples of every module, and sums."""
    texts = [example["question"] for example in example_questions()]
    texts += [f"What is {a} + {b}?" for a in range(30) for b in range(30)]
    return random.Random(0).sample(texts, count)


def disturb_vectors(model):
    """Change biases, normalisations and constant roles, which are initially all 0 or all 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn_like(parameter)


@pytest.fixture(scope="module")
def models(folders, shape):
    """One model of each kind, not trained, and one trained for a moment."""
    torch.manual_seed(1)
    built = {name: tpt.build("tp-transformer-tiny", **shape, **MODELS[name]) for name in MODELS}
    built["trained"] = tpt.load(folders[0])
    built["words"] = tpt.build(
        "tp-transformer-tiny", vocabulary=Vocabulary.of([" ".join(WORDS)], "words"), **shape
    )
    for name, model in built.items():
        model.max_answer = 12
        if name != "trained":
            disturb_vectors(model)
    return {name: model.eval() for name, model in built.items()}


@pytest.fixture(scope="module")
def page(browser, models, tmp_path_factory):
    """All models in one page, open in the browser."""
    file = tmp_path_factory.mktemp("explorer") / "page.html"
    Page(models=list(models.values()), folders=list(models)).write(file)
    browser.open(file.as_uri())
    return browser


def in_browser(page, index, questions):
    """The answer, the tokens and the logits (step, token) of each question, from the page."""
    found = page.run(
        f"""(async () => {{
          const found = [];
          for (const question of {json.dumps(questions)}) {{
            const result = await explorer.client.run({index}, question);
            const logits = new Float32Array(result.logits.flatMap((scores) => [...scores]));
            let bytes = "";
            for (const byte of new Uint8Array(logits.buffer)) bytes += String.fromCharCode(byte);
            found.push([result.answer, result.tokens.map(({{ id }}) => id), btoa(bytes)]);
          }}
          return found;
        }})()"""
    )
    for answer, tokens, encoded in found:
        logits = np.frombuffer(base64.b64decode(encoded), "<f4").reshape(len(tokens), -1)
        yield answer, tokens, torch.tensor(logits)


def in_python(model, questions, tokens):
    """The logits (question, step, token) before these tokens, from PyTorch."""
    vocabulary = model.vocabulary
    source = torch.from_numpy(vocabulary.encode(questions).padded(vocabulary.pad))
    shifted = [torch.tensor([vocabulary.sos, *ids[:-1]]) for ids in tokens]
    with torch.no_grad():
        return model.decode(pad_sequence(shifted, batch_first=True), model.encode(source))


def compare(page, models, name, questions):
    model = models[name]
    questions = sorted(questions, key=len)  # little padding
    for start in range(0, len(questions), 50):
        some = questions[start : start + 50]
        answers, tokens, logits = zip(
            *in_browser(page, list(models).index(name), some), strict=True
        )
        assert list(answers) == model.solve(some)
        for ids, found, wanted in zip(tokens, logits, in_python(model, some, tokens), strict=True):
            torch.testing.assert_close(found, wanted[: len(ids)], rtol=0, atol=TOLERANCE)
            assert found.argmax(dim=-1).tolist() == ids


@pytest.mark.parametrize("name", [*MODELS, "trained"])
def test_logits_and_answers_agree_with_pytorch(page, models, name):
    compare(page, models, name, asked(500 if name in ("none", "trained") else 16))


def test_a_model_of_words_agrees_with_pytorch(page, models):
    chance = random.Random(0)
    questions = [" ".join(chance.choices(WORDS, k=length)) for length in range(1, 7)]
    compare(page, models, "words", questions)
    refused = page.run(
        f"""explorer.client.run({list(models).index("words")}, "jump <pad>")
          .catch((error) => error.message)"""
    )
    assert refused == "The model does not know the word “<pad>” at position 2."


def test_the_comparison_would_notice_a_difference(page, models):
    ((_, tokens, logits),) = in_browser(page, list(models).index("hadamard"), asked(1))
    (wanted,) = in_python(models["tensor"], asked(1), [tokens])
    with pytest.raises(AssertionError):
        torch.testing.assert_close(logits, wanted, rtol=0, atol=TOLERANCE)


def test_every_binding_that_python_allows_is_one_of_the_engine(page):
    source = page.run("document.getElementById('worker').textContent")
    start = source.index("const BINDINGS = {")
    body = source[start : source.index("\n};", start)]
    names = [
        line.split(":")[0].strip(' "')
        for line in body.splitlines()
        if line.startswith("  ") and line[2] not in " }"
    ]
    assert tuple(names) == packing.BINDINGS


def test_a_question_that_cannot_be_read_gets_a_sentence(page):
    for question, said in (
        ("", "empty"),
        ("ß", "does not know the character “ß”"),
        ("1" * 199, "199"),
    ):
        asking = f"explorer.client.run(0, {json.dumps(question)})"
        error = page.run(f"{asking}.then(() => '', (error) => error.message)")
        assert said in error


@pytest.mark.slow
def test_a_small_model_answers_in_less_than_300_milliseconds(browser, tmp_path):
    """The fastest of five times, which other programs disturb least; 30 tokens each."""
    model = tpt.build("tp-transformer-small").eval()
    Page(models=[model], folders=["small"]).write(tmp_path / "page.html")
    browser.open((tmp_path / "page.html").as_uri())
    times = browser.run(
        """(async () => {
          const times = [];
          for (let i = 0; i < 5; i++)
            times.push((await explorer.client.run(0, "What is (4/5)/(2/3)?")).milliseconds);
          return times;
        })()"""
    )
    assert min(times) < 300
