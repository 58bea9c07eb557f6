"""Models of this package in transformers: the same logits, answers and losses."""

import json
import subprocess
import sys

import pytest
import torch

import tp_transformer as tpt
from interop_models import model_of, questions
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import FolderError, SettingsError, TextError
from tp_transformer.model.batch import Batch
from variants import DISTINCT

transformers = pytest.importorskip("transformers")

import huggingface_hub  # noqa: E402
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer  # noqa: E402

from tp_transformer.interop.hf import (  # noqa: E402
    HubTransformer,
    TPTransformerConfig,
    TPTransformerForConditionalGeneration,
    export_hf,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _no_progress_bars():
    transformers.utils.logging.disable_progress_bar()


def loaded(model, folder):
    export_hf(model, folder, "card")
    return AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def generated(model, tokenizer, texts, **options):
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    return tokenizer.batch_decode(model.generate(**tokens, **options), skip_special_tokens=True)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Our model, and what transformers loads from its export."""
    model = model_of("hadamard", steps=40)
    transformers.utils.logging.disable_progress_bar()
    return (model, *loaded(model, tmp_path_factory.mktemp("hf") / "exported"))


@pytest.mark.parametrize("binding", DISTINCT)
def test_generate_gives_our_answers(binding, tmp_path):
    model = model_of(binding)
    model.max_answer = 8
    theirs, tokenizer = loaded(model, tmp_path / "exported")
    texts, answers = questions(12)
    ours = model.solve(texts)
    assert any(ours)
    assert generated(theirs, tokenizer, texts) == ours
    batch = Batch.from_text(texts, answers, model.vocabulary)
    inputs = tokenizer(texts, text_target=answers, padding=True, return_tensors="pt")
    torch.testing.assert_close(inputs["input_ids"], batch.source)
    torch.testing.assert_close(inputs["labels"], batch.target_output)
    found = theirs(**inputs)
    filled = batch.target_mask
    torch.testing.assert_close(found.logits[filled], model(batch)[filled], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.loss, model.loss(batch).mean, rtol=1e-5, atol=1e-6)


def test_the_cache_does_not_change_answers(exported):
    _, theirs, tokenizer = exported
    texts, _ = questions(6, seed=5)
    for options in ({}, {"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2}):
        cached = generated(theirs, tokenizer, texts, **options)
        assert cached == generated(theirs, tokenizer, texts, **options, use_cache=False)
        assert len(cached) == 6 * options.get("num_return_sequences", 1)


def test_beams_and_samples(exported):
    model, theirs, tokenizer = exported
    texts, _ = questions(6, seed=5)
    assert generated(theirs, tokenizer, texts, num_beams=3, length_penalty=0.0) == model.solve(
        texts, beam=3
    )
    samples = set()
    for seed in range(4):
        torch.manual_seed(seed)
        samples.add(tuple(generated(theirs, tokenizer, texts, do_sample=True, temperature=3.0)))
    assert len(samples) == 4


def test_an_answer_can_be_continued_from_a_cache(exported):
    _, theirs, tokenizer = exported
    inputs = tokenizer(["What is 12 + 3?", "What is 4 + 3?"], padding=True, return_tensors="pt")
    target = torch.tensor([[1, 15, 19], [1, 21, 2]])
    whole = theirs(**inputs, decoder_input_ids=target).logits
    first = theirs(**inputs, decoder_input_ids=target[:, :2], use_cache=True)
    rest = theirs(
        **inputs,
        decoder_input_ids=target[:, 2:],
        past_key_values=first.past_key_values,
        encoder_outputs=(first.encoder_last_hidden_state,),
    )
    found = torch.cat([first.logits, rest.logits], dim=1)
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="static caches"):
        theirs.generate(**inputs, cache_implementation="static")


def test_a_model_is_saved_and_loaded_by_transformers(exported, tmp_path):
    _, theirs, tokenizer = exported
    theirs.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = TPTransformerForConditionalGeneration.from_pretrained(tmp_path)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    values = [each.config.to_dict() for each in (again, theirs)]
    assert values[0].pop("_name_or_path") != values[1].pop("_name_or_path")
    assert values[0] == values[1]
    assert again.generation_config.max_new_tokens == 30
    texts, _ = questions(4)
    assert generated(again, AutoTokenizer.from_pretrained(tmp_path), texts) == generated(
        theirs, tokenizer, texts
    )
    again.model.save(tmp_path / "ours")  # back to a model folder
    assert tpt.load(tmp_path / "ours").solve(texts) == again.model.solve(texts)


def test_weights_that_are_missing_are_not_invented(exported, tmp_path):
    from safetensors.torch import load_file, save_file

    exported[1].save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("model.embedding.symbols.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(FolderError, match=r"lack tensor model\.embedding\.symbols\.weight"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_an_untrained_model_is_initialised_as_ours():
    config = TPTransformerConfig(
        d_model=16, d_ff=16, n_layers=1, n_heads=2, binding="low-rank", rank=3
    )
    torch.manual_seed(0)
    made = AutoModelForSeq2SeqLM.from_config(config)
    torch.manual_seed(0)
    ours = tpt.Transformer(made.model.config)
    for name, tensor in ours.state_dict().items():
        assert torch.equal(made.model.state_dict()[name], tensor), name
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (72, 16, 1)
    assert TPTransformerConfig(vocab_size=95, hidden_size=8, n_layers=1).build().n_vocab == 95


def test_only_transformers_and_known_settings(tmp_path):
    with pytest.raises(SettingsError, match="only Transformers can be exported"):
        export_hf(tpt.build("lstm-saxton", d_hidden=8), tmp_path / "exported", "card")
    assert not (tmp_path / "exported").exists()
    with pytest.raises(SettingsError, match="there is no binding"):
        TPTransformerConfig(binding="hadamrd")


def test_words_are_tokens_too(tmp_path):
    texts = ["jump twice", "walk left and jump", "walk"]
    vocabulary = Vocabulary.of(texts, "words")
    model = tpt.build("tp-transformer-tiny", vocabulary=vocabulary, d_model=16, n_layers=1).eval()
    model.max_answer = 6
    theirs, tokenizer = loaded(model, tmp_path / "exported")
    assert tokenizer.tokenize(texts[1]) == ["walk", "left", "and", "jump"]
    ids = tokenizer(texts[0])["input_ids"]
    assert tokenizer.decode(ids) == "<sos> jump twice <eos>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "jump twice"
    assert generated(theirs, tokenizer, texts) == model.solve(texts)


def test_texts_are_characters_and_nothing_else(exported):
    tokenizer = exported[2]
    text = "a <sos>  b ."  # what transformers would strip, split or clean up
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert tokenizer(text_target="7")["input_ids"] == [21, 2]
    assert tokenizer.model_max_length == 200
    with pytest.raises(TextError, match="'ä' at position 2"):
        tokenizer("xä")
    with pytest.raises(ValueError, match="not a pair"):
        tokenizer("a", "b")


def test_trainer_lowers_the_loss(tmp_path):
    pytest.importorskip("accelerate")
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    model = model_of("hadamard", n_layers=1)
    theirs, tokenizer = loaded(model, tmp_path / "exported")
    texts, answers = questions(400)
    rows = tokenizer(texts, text_target=answers)
    dataset = [{name: rows[name][i] for name in rows} for i in range(len(texts))]
    trainer = Trainer(
        model=theirs,
        args=TrainingArguments(
            output_dir=tmp_path / "run",
            max_steps=50,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=dataset,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=theirs),
    )
    before = trainer.evaluate(dataset[:64])["eval_loss"]
    ours = model.loss(Batch.from_text(texts[:64], answers[:64], model.vocabulary)).mean.item()
    assert before == pytest.approx(ours, rel=0.05)  # a mean over batches of different lengths
    trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    assert len(losses) == 5
    assert losses[-1] < 0.8 * losses[0]
    assert trainer.evaluate(dataset[:64])["eval_loss"] < 0.8 * before


def test_the_objective_of_training_has_the_penalty_and_all_tokens():
    model = model_of("dictionary", one_hot=0.5, exclusive=0.1)
    theirs = TPTransformerForConditionalGeneration.of(model).train()
    batch = Batch.from_text(*questions(4), model.vocabulary)
    expected = model.loss(batch)
    assert expected.penalty > 0
    labels = batch.target_output.masked_fill(~batch.target_mask, -100)
    found = theirs(batch.source, labels=labels).loss
    torch.testing.assert_close(found, expected.objective / expected.n_tokens)
    divided = theirs(batch.source, labels=labels, num_items_in_batch=100).loss
    torch.testing.assert_close(divided, expected.objective / 100)


def test_traces_see_what_generate_computes(exported):
    _, theirs, tokenizer = exported
    inputs = tokenizer(["What is 1 + 1?"], return_tensors="pt")
    name = "encoder.0.self_attention.role"
    before = theirs.generate(**inputs)
    with theirs.model.trace(name, edit={"*.role": torch.zeros_like}) as recorded:
        edited = theirs.generate(**inputs)
    assert recorded[name].shape[2] == inputs["input_ids"].shape[1]
    assert not torch.equal(before, edited)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auto") / "exported"
    export_hf(model_of("hadamard", n_layers=1), folder, "card")
    check = (
        "model = AutoModelForSeq2SeqLM.from_pretrained(FOLDER)\n"
        "tokenizer = AutoTokenizer.from_pretrained(FOLDER)\n"
        "assert type(model).__module__.startswith('tp_transformer'), type(model)\n"
        "assert type(tokenizer).__module__.startswith('tp_transformer'), type(tokenizer)\n"
    )
    return f"FOLDER = {str(folder)!r}\n", check


AUTO = "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [f"import tp_transformer.interop\n{AUTO}", f"{AUTO}import tp_transformer.interop\n"],
)
def test_the_auto_classes_know_the_model(imports, script):
    start, check = script
    code = start + imports + check
    subprocess.run([sys.executable, "-W", "error::ImportWarning", "-c", code], check=True)


def test_the_configuration_is_plain_json(exported, tmp_path):
    exported[1].config.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert values["model_type"] == "tp_transformer"
    assert "auto_map" not in values  # no remote code
    assert AutoConfig.from_pretrained(tmp_path).build().config == exported[0].config


@pytest.fixture
def model():
    model = model_of("low-rank")  # whose rank is not a field of the configuration
    model.max_answer = 7
    return model


def test_a_folder_is_saved_twice_and_loaded(model, tmp_path):
    model.save(tmp_path / "ours")
    loaded = HubTransformer.from_pretrained(tmp_path / "ours")
    for _ in range(2):
        loaded.save_pretrained(tmp_path / "hub")
    card = (tmp_path / "hub" / "README.md").read_text("utf-8")
    assert "library_name: tp-transformer" in card
    again, plain = HubTransformer.from_pretrained(str(tmp_path / "hub")), tpt.load(tmp_path / "hub")
    assert not again.training
    assert again.max_answer == plain.max_answer == 7
    texts, _ = questions(3)
    assert again.solve(texts) == plain.solve(texts) == model.solve(texts)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_pushed_files_are_those_of_a_model_folder(model, tmp_path, monkeypatch):
    """The requests to the Hub are replaced; everything before them is real."""
    model.save(tmp_path / "ours")
    pushed = {}

    def upload(self, *, repo_id, folder_path, **_):
        pushed[repo_id] = {file.name for file in folder_path.iterdir()}
        return "url"

    def create(self, repo_id, **_):
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    HubTransformer.from_pretrained(tmp_path / "ours").push_to_hub("someone/model")
    files = {"README.md", "config.json", "model.safetensors", "vocabulary.json"}
    assert pushed == {"someone/model": files}


def test_a_repository_is_downloaded(model, tmp_path, monkeypatch):
    model.save(tmp_path / "cached")
    asked = []

    def download(name, **options):
        asked.append((name, options))
        return str(tmp_path / "cached")

    monkeypatch.setattr("tp_transformer.interop.hf.snapshot_download", download)
    loaded = HubTransformer.from_pretrained("someone/model", revision="v1")
    assert loaded.config == model.config
    files = ["model.safetensors", "config.json", "vocabulary.json"]
    assert asked == [("someone/model", {"allow_patterns": files, "revision": "v1"})]


def test_an_lstm_is_refused(tmp_path):
    tpt.build("lstm-saxton", d_hidden=8).save(tmp_path / "lstm")
    with pytest.raises(FolderError, match="architecture lstm"):
        HubTransformer.from_pretrained(tmp_path / "lstm")
