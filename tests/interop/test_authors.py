"""The authors' checkpoints: read exactly, and nothing that a file brings along is ever run."""

import collections
import functools
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
import torch

import reference
import tp_transformer as tpt
from fuzzing import mutate_bytes, tolerated, trials
from tp_transformer.cli import main
from tp_transformer.errors import CheckpointError, SettingsError
from tp_transformer.interop.authors import import_checkpoint

# The authors' order: four special symbols, then characters by frequency.
ITOS = ["<unk>", "<pad>", "<sos>", "<eos>", *" e1t-2oa3?.+="]
SIZES = {"n_layers": 1, "d_model": 8, "d_ff": 12, "n_heads": 2}
PLAIN_NAMES = {"W_q": "w_q", "W_k": "w_k", "W_v": "w_v", "W_o": "linear"}
CONTAINERS = ["pickle", "legacy", "zip"]  # how a file may have been written


# Files as the authors' programs wrote them.


def draw(binding="hadamard", **sizes):
    """Random weights in the reference's layout, in the float32 of a checkpoint."""
    return dict(_draw(binding, **{**SIZES, "embedding_binding": binding != "none", **sizes}))


@functools.cache
def _draw(binding, **sizes):
    drawn = reference.random_parameters(
        **sizes, n_vocab=len(ITOS), binding=binding, generator=torch.Generator().manual_seed(0)
    )
    return {name: tensor.float() for name, tensor in drawn.items()}


def authors_names(parameters, *, prefix=""):
    """The same weights under the names of their file; plain attention has names of its own."""
    plain = not any(".W_r." in name for name in parameters)
    renamed = OrderedDict()
    for name, tensor in parameters.items():
        parts = [PLAIN_NAMES.get(part, part) if plain else part for part in name.split(".")]
        renamed[prefix + ".".join(parts)] = tensor
    return renamed


def dump(value, container, protocol=2):
    """The bytes of a file that holds `value`."""
    if container == "pickle":
        return pickle.dumps(value, protocol)
    stream = io.BytesIO()
    is_zip = container == "zip"
    torch.save(value, stream, pickle_protocol=protocol, _use_new_zipfile_serialization=is_zip)
    return stream.getvalue()


def dump_checkpoint(model, container="legacy"):
    """A checkpoint with what the authors' trainer saved beside the model."""
    state = {
        "global_step": 1_700_000,
        "model": model,
        "optimizer": {
            "state": {0: {"step": 3, "exp_avg": torch.ones(2)}},
            "param_groups": [{"lr": 1e-4, "betas": (0.9, 0.995), "params": [0]}],
        },
        "best_eval_loss": torch.tensor(0.1),
        "best_eval_acc": 0.8,
    }
    return dump(state, container)


class Vocab:
    """Pickled as torchtext 0.3.1's class of this name was."""

    __module__, __qualname__ = "torchtext.vocab", "Vocab"

    def __init__(self, itos):
        self.freqs = Counter({"e": 70, "1": 7})
        self.itos = itos
        self.stoi = defaultdict(_default_unk_index, {"<unk>": 0, "<pad>": 1, "e": 5})
        self.vectors = None


def _default_unk_index():
    return 0


_default_unk_index.__module__ = "torchtext.vocab"


def dump_vocab(itos=ITOS, container="legacy", *, protocol=2, **attributes):
    """A vocab.pt, written while a module called torchtext seems to be installed."""
    package, module = ModuleType("torchtext"), ModuleType("torchtext.vocab")
    package.vocab = module
    module.Vocab, module._default_unk_index = Vocab, _default_unk_index
    vocab = Vocab(itos)
    vars(vocab).update(attributes)
    with patch.dict(sys.modules, {"torchtext": package, "torchtext.vocab": module}):
        return dump(vocab, container, protocol)


@pytest.fixture
def files(tmp_path):
    """Write a checkpoint and a vocabulary, by default good ones; return their paths."""

    def write(checkpoint=None, vocab=None):
        paths = tmp_path / "checkpoint.pt", tmp_path / "vocab.pt"
        good = dump_checkpoint(authors_names(draw()))
        paths[0].write_bytes(good if checkpoint is None else checkpoint)
        paths[1].write_bytes(dump_vocab() if vocab is None else vocab)
        return paths

    return write


def refusal(checkpoint, vocab, n_heads=2):
    """The line with which the files are refused."""
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(checkpoint, vocab, n_heads=n_heads)
    message = str(caught.value)
    assert message.isprintable(), "one line without control codes"
    assert len(message) < 400
    return message


def logits(model, source, target):
    with torch.no_grad():
        return model.decode(torch.tensor([target]), model.encode(torch.tensor([source])))[0]


# What is imported computes what the reference computes.


@pytest.mark.parametrize(
    ("binding", "n_layers", "d_model", "d_ff", "n_heads", "embedding_binding"),
    [
        ("hadamard", 1, 8, 12, 2, True),
        ("hadamard", 2, 12, 8, 3, True),
        ("hadamard", 3, 8, 8, 8, False),
        ("none", 1, 8, 12, 1, False),
        ("none", 2, 12, 16, 4, False),
        ("none", 1, 6, 5, 2, True),
    ],
)
@pytest.mark.parametrize(("container", "prefix"), [("legacy", "module."), ("zip", "")])
def test_logits_are_the_references(
    files, binding, n_layers, d_model, d_ff, n_heads, embedding_binding, container, prefix
):
    sizes = {"n_layers": n_layers, "d_model": d_model, "d_ff": d_ff, "n_heads": n_heads}
    parameters = draw(binding, embedding_binding=embedding_binding, **sizes)
    model = import_checkpoint(
        *files(dump_checkpoint(authors_names(parameters, prefix=prefix), container)),
        n_heads=n_heads,
    )
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.n_positions == 200
    learned = sum(p.numel() for name, p in parameters.items() if name != "embedding.pe")
    assert model.n_parameters == learned

    source, target = [2, 5, 9, 4, 16, 3], [2, 7, 8, 0]
    exact = {name: p.double() for name, p in parameters.items()}
    expected = reference.logits(exact, source, target, n_heads, binding)
    # In float64 both compute the same; what is left is far below what float32 could hide.
    assert torch.allclose(logits(model.double(), source, target), expected, rtol=0, atol=1e-9)


def test_the_biases_of_keys(files):
    """They add the same to all scores of a query, so that no logits can show them."""
    parameters = draw(n_layers=2)
    model = import_checkpoint(*files(dump_checkpoint(authors_names(parameters))), n_heads=2)
    for layer in (0, 1):
        for theirs, ours in (
            (f"encoder.layers.{layer}.MHA", model.encoder[layer].self_attention),
            (f"decoder.layers.{layer}.selfAttn", model.decoder[layer].self_attention),
            (f"decoder.layers.{layer}.encAttn", model.decoder[layer].cross_attention),
        ):
            assert torch.equal(ours.maps()["key"][1], parameters[f"{theirs}.W_k.bias"])


def test_a_checkpoint_from_a_gpu_reads_without_one(files):
    data = dump_checkpoint(authors_names(draw()))
    assert b"ctorch\nFloatStorage\n" in data
    assert b"X\x03\x00\x00\x00cpu" in data
    from_gpu = data.replace(b"ctorch\nFloatStorage\n", b"ctorch.cuda\nFloatStorage\n")
    from_gpu = from_gpu.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    model = import_checkpoint(*files(from_gpu), n_heads=2)
    same = import_checkpoint(*files(data), n_heads=2)
    assert torch.equal(logits(model, [2, 5, 3], [2, 7]), logits(same, [2, 5, 3], [2, 7]))


def test_fewer_positions(files):
    parameters = draw()
    parameters["embedding.pe"] = parameters["embedding.pe"][:, :40].clone()
    model = import_checkpoint(*files(dump_checkpoint(authors_names(parameters))), n_heads=2)
    assert model.n_positions == model.config.n_positions == 40


def test_positions_as_the_authors_computed_them_in_float32(files):
    parameters = draw(d_model=64, n_heads=8)
    exponent = torch.arange(0.0, 64, 2) * -(torch.log(torch.tensor(10000.0)) / 64)
    angle = torch.arange(0.0, 200)[:, None] * exponent.exp()
    parameters["embedding.pe"] = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[None]
    import_checkpoint(*files(dump_checkpoint(authors_names(parameters))))


def test_importing_draws_no_random_numbers(files):
    paths = files()
    state = torch.get_rng_state()
    import_checkpoint(*paths, n_heads=2)
    assert torch.equal(torch.get_rng_state(), state)


def test_eight_heads_unless_told(files):
    paths = files(dump_checkpoint(authors_names(draw(d_model=16, n_heads=8))))
    assert import_checkpoint(*paths).config.n_heads == 8


# The vocabulary.


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_symbols_keep_the_authors_order(files, container, protocol):
    vocab = dump_vocab(container=container, protocol=protocol)
    assert b"torchtext.vocab" in vocab
    assert b"_default_unk_index" in vocab
    model = import_checkpoint(*files(vocab=vocab), n_heads=2)
    assert model.vocabulary.tokens == tuple(ITOS)
    assert model.vocabulary.encode(["1 + 2"]).ids.tolist() == [2, 6, 4, 15, 4, 9, 3]
    assert "torchtext" not in sys.modules


@pytest.mark.parametrize("protocol", [2, 4])
def test_other_containers_in_a_vocabulary(files, protocol):
    extra = {"a": {1, 2}, "b": frozenset("b"), "c": OrderedDict(d=1), "e": [Counter("ee")], "f": ()}
    vocab = dump_vocab(protocol=protocol, **extra)
    assert import_checkpoint(*files(vocab=vocab), n_heads=2).vocabulary.tokens == tuple(ITOS)


@pytest.mark.parametrize(
    ("itos", "complaint"),
    [
        (tuple(ITOS), "itos"),
        (None, "itos"),
        ([*ITOS[:-1], 7], "itos"),
        ([*ITOS[:-1], "ab"], "'ab'"),
        ([*ITOS[:-1], ""], "''"),
        ([*ITOS[:-1], "\0"], r"'\x00'"),
        ([*ITOS[:-1], "\ud800"], r"'\ud800'"),
        ([*ITOS[:-1], "<a\nb>"], r"'<a\nb>'"),
        ([*ITOS[:-1], "e"], "twice"),
        (["<unk>", *ITOS[3:], *"xy"], "<pad>, <sos>"),
    ],
)
def test_symbols_that_do_not_make_a_vocabulary(files, itos, complaint):
    checkpoint, vocab = files(vocab=dump_vocab(itos))
    message = refusal(checkpoint, vocab)
    assert message.startswith(f"{vocab}: ")
    assert complaint in message


@pytest.mark.parametrize("itos", [ITOS[:-1], [*ITOS, "y"]])
def test_a_vocabulary_of_another_size(files, itos):
    checkpoint, vocab = files(vocab=dump_vocab(itos))
    message = refusal(checkpoint, vocab)
    assert message.startswith(
        f"{checkpoint}: 'embedding.tok_embedding.weight' has {len(ITOS)} rows"
    )
    assert f"{vocab} lists {len(itos)} tokens" in message


# Nothing in a file is run.


class Call:
    """Pickled as an instruction to call `function`."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


PAYLOADS = {
    "os.system": lambda marker: Call(os.system, f"touch {marker}"),
    "eval": lambda marker: Call(eval, f"__import__('pathlib').Path({str(marker)!r}).touch()"),
    "exec": lambda marker: Call(exec, f"open({str(marker)!r}, 'w').close()"),
    "subprocess": lambda marker: Call(subprocess.call, ["touch", str(marker)]),
}


@pytest.fixture
def marker(tmp_path):
    """The file that a payload creates if anything runs it."""
    return tmp_path / "ran"


def test_the_payloads_would_run(marker):
    """A payload that does nothing would prove nothing."""
    for name, payload in PAYLOADS.items():
        pickle.loads(pickle.dumps(payload(marker), 2))
        assert marker.exists(), name
        marker.unlink()


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_checkpoint_cannot_run_code(files, marker, payload, container, protocol):
    call = PAYLOADS[payload](marker)
    model = authors_names(draw())
    for value in (call, {"model": call}, {"model": model, "optimizer": call}):
        message = refusal(*files(dump(value, container, protocol)))
        assert "would run" in message or "not a plain checkpoint" in message
        assert not marker.exists()


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_vocabulary_cannot_run_code(files, marker, payload, container, protocol):
    call = PAYLOADS[payload](marker)
    vocabs = [dump(call, container, protocol)]
    if protocol >= 2:  # in protocol 0 the class is found by a function that is refused anyway
        vocabs.append(dump_vocab(container=container, protocol=protocol, vectors=call))
        vocabs.append(dump_vocab(container=container, protocol=protocol, stoi={"a": [call]}))
    for vocab in vocabs:
        message = refusal(*files(vocab=vocab))
        assert "would run" in message
        assert call.function.__name__ in message
        assert not marker.exists()


def short(text):
    """A string in a pickle of protocol 4."""
    return b"\x8c" + bytes([len(text)]) + text.encode()


def named(module, name):
    """A global in a pickle of protocol 4, where the name may have dots."""
    return short(module) + short(name) + b"\x93"


@pytest.mark.parametrize(
    "opcodes",
    [
        named("torchtext.vocab", "os.system") + short("touch {}") + b"\x85R",
        named("torchtext.vocab", "torch.os.system") + short("touch {}") + b"\x85R",
        named("os", "system") + short("touch {}") + b"\x85R",
        named("torchtext.vocabulary", "system") + short("touch {}") + b"\x85R",
        named("torchtext", "vocab.os.system") + short("touch {}") + b"\x85R",
        named("builtins", "dict.fromkeys") + short("touch {}") + b"\x85R",
        b"(" + short("touch {}") + b"iposix\nsystem\n",  # INST
        b"(" + named("os", "system") + short("touch {}") + b"o",  # OBJ
        named("builtins", "getattr") + short("a") + short("upper") + b"\x86R",
        named("builtins", "eval") + b")\x81",  # NEWOBJ
        named("torchtext.vocab", "Vocab") + named("os", "system") + b"b",  # as a state
    ],
)
def test_crafted_names_are_refused(files, marker, opcodes):
    # The command's length stands before it, so the path is put where a short name was.
    command = f"touch {marker}".encode()
    opcodes = opcodes.replace(
        short("touch {}"), b"X" + len(command).to_bytes(4, "little") + command
    )
    assert "would run" in refusal(*files(vocab=b"\x80\x04" + opcodes + b"."))
    assert not marker.exists()


def build_on(module, name, attributes):
    """A pickle that sets attributes of a class that it names."""
    state = pickle.dumps((None, attributes), 2)[2:-1]
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + state + b"b."


def test_a_pickle_cannot_alter_classes(files):
    attack = build_on("collections", "Counter", {"altered": True})
    try:
        pickle.loads(attack)
        assert collections.Counter.altered, "the attack would work"
    finally:
        del collections.Counter.altered
    refusal(*files(vocab=attack))
    assert not hasattr(collections.Counter, "altered")
    refusal(*files(vocab=build_on("torchtext.vocab", "Vocab", {"state": {"itos": ITOS}})))
    refusal(*files(vocab=dump_vocab()[:-1] + attack))
    assert import_checkpoint(*files(), n_heads=2).vocabulary.tokens == tuple(ITOS)


def test_a_vocabulary_holds_no_tensors(files):
    assert "tensors" in refusal(*files(vocab=b"\x80\x02X\x01\x00\x00\x00aQ."))
    message = refusal(*files(vocab=dump_vocab(container="zip", vectors=torch.ones(2))))
    assert "torch._utils._rebuild_tensor_v2" in message


def test_names_out_of_a_file_cannot_write_to_the_terminal(files):
    message = refusal(*files(vocab=b"\x80\x04" + named("os\x1b[2J\nroot", "x" * 200) + b"R."))
    assert r"os\x1b[2J\nroot.x" in message
    model = authors_names(draw())
    model["\x1b[2J\n" + 999 * "x"] = torch.ones(2)
    assert r"\x1b[2J\nx" in refusal(*files(dump_checkpoint(model)))


# Files that are damaged, or something else.


def zip_of(names, *, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return stream.getvalue()


OTHER_FILES = {
    "empty": b"",
    "page": b"<!DOCTYPE html><html><body>Not found</body></html>\n",
    "text": b"not a checkpoint\n",
    "zeros": bytes(4096),
    "number": pickle.dumps(7),
    "text_pickle": pickle.dumps("text"),
    "magic_number_alone": pickle.dumps(0x1950A86A20F9469CFC6C, 2),
    "foreign_zip": zip_of({"a.txt": b"a", "b/c.txt": b"b"}),
    "empty_zip": zip_of({}),
    "torchscript": zip_of({"a/data.pkl": b"N.", "a/constants.pkl": b"N.", "a/version": b"3"}),
    "none_in_zip": zip_of({"a/data.pkl": b"\x80\x02N.", "a/version": b"3\n"}),
    "torch_list": dump([1, 2], "zip"),
    "torch_tensor": dump(torch.ones(2), "legacy"),
}


@pytest.mark.parametrize("content", OTHER_FILES.values(), ids=OTHER_FILES)
def test_other_files(files, content):
    checkpoint, vocab = files(checkpoint=content)
    assert refusal(checkpoint, vocab).startswith(f"{checkpoint}: ")
    checkpoint, vocab = files(vocab=content)
    assert refusal(checkpoint, vocab).startswith(f"{vocab}: ")


def test_files_that_cannot_be_opened(files, tmp_path):
    checkpoint, vocab = files()
    for bad in (tmp_path / "missing.pt", tmp_path, Path("nul\0l")):
        for paths in ((bad, vocab), (checkpoint, bad)):
            with pytest.raises(CheckpointError, match="cannot be read"):
                import_checkpoint(*paths, n_heads=2)


def test_a_vocabulary_that_is_too_large(files):
    assert "too large" in refusal(*files(vocab=dump_vocab() + bytes(2**24)))
    compressed = zip_of({"a/data.pkl": bytes(2**26)}, compression=zipfile.ZIP_DEFLATED)
    assert "zip" in refusal(*files(vocab=compressed))


# Checkpoints of another model.


def changed(parameters, **changes):
    """The authors' layout with some tensors replaced, or left out where the change is None."""
    model = {**authors_names(parameters), **changes}
    return dump_checkpoint({name: t for name, t in model.items() if t is not None})


@pytest.mark.parametrize("binding", ["hadamard", "none"])
def test_a_missing_or_misshapen_tensor_is_named(files, binding):
    for name, tensor in authors_names(draw(binding)).items():
        for wrong in (None, torch.cat([tensor, tensor[-1:]])):
            assert repr(name) in refusal(*files(changed(draw(binding), **{name: wrong}))), name


@pytest.mark.parametrize(
    "name",
    [
        "embedding.scale",
        "encoder.layers.0.MHA.W_x.weight",
        "encoder.layers.0.MHA.w_q.weight",
        "decoder.layers.0.selfAttn.linear.bias",
        "decoder.layers.0.layernorm5.weight",
        "module.embedding.pe",
        "out.weight",
    ],
)
def test_an_unknown_tensor_is_named(files, name):
    assert repr(name) in refusal(*files(changed(draw(), **{name: torch.ones(8)})))


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(8, dtype=torch.int64),
        torch.ones(8, dtype=torch.bool),
        torch.ones(8, dtype=torch.complex64),
        torch.ones(8).to_sparse(),
        torch.ones(8, device="meta"),
        torch.ones(1).expand(8),
        torch.ones(0),
        [1.0] * 8,
        "text",
        {},
    ],
    ids=str,
)
def test_what_is_not_a_plain_tensor_is_named(files, value):
    name = "decoder.layers.0.layernorm4.bias"
    assert repr(name) in refusal(*files(changed(draw(), **{name: value})))


@pytest.mark.parametrize(
    "state",
    [{}, {"model": None}, {"model": [1]}, {"model": {}}, {"model": {1: torch.ones(1)}}],
    ids=str,
)
def test_a_checkpoint_without_a_model(files, state):
    checkpoint, vocab = files(checkpoint=dump(state, "legacy"))
    assert refusal(checkpoint, vocab).startswith(f"{checkpoint}: the ")


def test_claims_of_enormous_size_are_refused(files):
    """Nothing of such a size may be allocated before it is refused."""
    positions = torch.zeros(1, 1, 8).expand(1, 10**12, 8)  # a few stored numbers, repeated
    message = refusal(*files(changed(draw(), **{"embedding.pe": positions})))
    assert "'embedding.pe'" in message
    wide = {n: torch.ones(10**6) if "layernorm" in n else t for n, t in draw().items()}
    wide["embedding.pe"] = reference.position(0, 10**6)[None, None]
    assert "has shape" in refusal(*files(dump_checkpoint(authors_names(wide))))


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_encoder_and_decoder_of_different_depth(files, stack):
    parameters = {
        name: t for name, t in draw(n_layers=2).items() if not name.startswith(f"{stack}.layers.1.")
    }
    message = refusal(*files(dump_checkpoint(authors_names(parameters))))
    depths = {"encoder": 2, "decoder": 2, stack: 1}
    assert f"encoder has {depths['encoder']} layers and the decoder {depths['decoder']}" in message


@pytest.mark.parametrize("n_heads", [0, -2, 3, 16])
def test_heads_that_do_not_fit(files, n_heads):
    with pytest.raises(SettingsError, match=f"{n_heads}"):
        import_checkpoint(*files(), n_heads=n_heads)


def test_other_positions_are_named(files):
    right = draw()["embedding.pe"]
    for wrong in (right + 2e-4, right.roll(1, dims=1), right * float("nan"), right[:, :0].clone()):
        assert "'embedding.pe'" in refusal(*files(changed(draw(), **{"embedding.pe": wrong})))
    misnamed = changed(draw(), **{"embedding.pe": None, "embedding.period": right})
    assert "lacks 'embedding.pe'" in refusal(*files(misnamed))
    # Half of the components are sines and then half cosines, as other programs order them.
    halves = torch.cat([right[..., 0::2], right[..., 1::2]], dim=-1)
    assert "'embedding.pe'" in refusal(*files(changed(draw(), **{"embedding.pe": halves})))


# The command.


def run(checkpoint, vocab, out, heads="2"):
    main(["import-authors", str(checkpoint), "--vocab", str(vocab), "--heads", heads, "--out", out])


def test_the_command_writes_a_model_folder(files, tmp_path, capfd):
    checkpoint, vocab = files()
    run(checkpoint, vocab, str(tmp_path / "out"))
    printed = capfd.readouterr()
    assert printed.err == ""
    assert "TP-Transformer with 1+1 layers" in printed.out
    model = tpt.load(tmp_path / "out")
    expected = import_checkpoint(checkpoint, vocab, n_heads=2)
    assert torch.equal(logits(model, [2, 5, 3], [2, 7]), logits(expected, [2, 5, 3], [2, 7]))


def test_the_command_refuses_in_one_line(files, tmp_path, marker, capfd, recwarn):
    good = authors_names(draw())
    call = PAYLOADS["os.system"](marker)
    cases = [
        *({"checkpoint": content} for content in OTHER_FILES.values()),
        *({"vocab": content} for content in OTHER_FILES.values()),
        {"checkpoint": dump({"model": good, "optimizer": call}, "legacy")},
        {"checkpoint": dump({"model": good, "optimizer": call}, "zip", protocol=4)},
        {"vocab": dump_vocab(vectors=call)},
        {"checkpoint": changed(draw(), **{"embedding.pe": None})},
    ]
    for case in cases:
        assert_refused_in_one_line(*files(**case), tmp_path, capfd)
    assert_refused_in_one_line(*files(), tmp_path, capfd, heads="3")
    assert_refused_in_one_line(tmp_path / "missing", files()[1], tmp_path, capfd)
    assert not recwarn.list, "a warning would be more lines"
    assert not marker.exists()


def assert_refused_in_one_line(checkpoint, vocab, folder, capfd, **options):
    before = sorted(folder.iterdir())
    with pytest.raises(SystemExit) as caught:
        run(checkpoint, vocab, str(folder / "out"), **options)
    assert caught.value.code == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tpt: ")
    assert printed.err.endswith("\n")
    assert printed.err.count("\n") == 1
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}" + b")" + b"\x85" * 10**6 + b"K\x01s.",  # tuples nested a million deep
        b"\x80\x02]r" + struct.pack("<I", 2**28) + b".",  # a memo of four gigabytes
    ],
)
def test_a_vocabulary_that_would_exhaust_the_machine_is_refused(files, content):
    checkpoint, vocab = files()
    vocab.write_bytes(content)
    assert "more operations than a vocabulary" in refusal(checkpoint, vocab)


def test_a_compressed_checkpoint_is_refused(files):
    good = dump_checkpoint(authors_names(draw()), "zip")
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    compressed = zip_of(members, compression=zipfile.ZIP_DEFLATED)
    assert "compressed zip archive" in refusal(*files(compressed))


def damaged(content, chance):
    """A file with damages; of a zip archive also within its members, as if it had been so saved."""
    if not content.startswith(b"PK") or chance.random() < 0.4:
        return mutate_bytes(content, chance)
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w") as new:
        members = {entry.filename: old.read(entry) for entry in old.infolist()}
        pickled = [name for name in members if name.endswith("data.pkl")]
        name = chance.choice([*pickled * 3, *members])
        members[name] = mutate_bytes(members[name], chance)
        for name, data in members.items():
            new.writestr(name, data)
    return stream.getvalue()


@pytest.mark.parametrize("count", [50, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("container", CONTAINERS)
def test_files_with_random_damages_are_imported_or_refused(files, container, count):
    model = authors_names(draw())
    contents = [
        dump_checkpoint(model, "legacy" if container == "pickle" else container),
        dump_vocab(container=container),
    ]
    n_imported = 0
    for name, chance in trials(count):
        which = chance.randrange(2)
        changed = [damaged(one, chance) if place == which else one
                   for place, one in enumerate(contents)]  # fmt: skip
        with tolerated(name):
            imported = import_checkpoint(*files(*changed), n_heads=2)
            assert imported.config.d_model == SIZES["d_model"]
            n_imported += 1
    assert n_imported < count / 2
