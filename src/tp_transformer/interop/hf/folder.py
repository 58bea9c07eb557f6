"""The folder that transformers loads: `tpt export --format hf`."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.interop.exported import as_transformer, new_folder
from tp_transformer.interop.hf.config import TPTransformerConfig
from tp_transformer.interop.hf.model import TPTransformerForConditionalGeneration
from tp_transformer.interop.hf.tokenizer import TPTransformerTokenizer
from tp_transformer.model.family import AnyModel
from tp_transformer.model.folder import VOCABULARY, write_vocabulary

CARD = "README.md"


def export_hf(model: AnyModel, folder: str | Path, card: str, files: Sequence[Path] = ()) -> None:
    """Write a folder that `AutoModelForSeq2SeqLM.from_pretrained` and `AutoTokenizer` load.

    Args:
        model: the model
        folder: the folder to write, which must be new or empty
        card: the model card, README.md
        files: files to copy into the folder
    """
    transformer = as_transformer(model)
    with new_folder(Path(folder)) as unfinished:
        TPTransformerForConditionalGeneration.of(transformer).save_pretrained(unfinished)
        tokenizer_of(transformer.vocabulary, transformer.n_positions, unfinished)
        (unfinished / CARD).write_text(card, "utf-8", newline="\n")
        for file in files:
            shutil.copyfile(file, unfinished / file.name)


def tokenizer_of(
    vocabulary: Vocabulary, n_positions: int | None, folder: Path
) -> TPTransformerTokenizer:
    """Return the tokenizer of a vocabulary, whose files are written to a folder."""
    file = folder / VOCABULARY
    write_vocabulary(file, vocabulary)
    tokenizer = TPTransformerTokenizer(str(file), model_max_length=n_positions)
    tokenizer.save_pretrained(folder)
    return tokenizer


AutoConfig.register(TPTransformerConfig.model_type, TPTransformerConfig)
AutoModelForSeq2SeqLM.register(TPTransformerConfig, TPTransformerForConditionalGeneration)
AutoTokenizer.register(TPTransformerConfig, TPTransformerTokenizer)
