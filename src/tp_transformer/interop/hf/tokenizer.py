"""The tokenizer for transformers: characters or words, as in the vocabulary of a model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizer

from tp_transformer.data.vocabulary import EOS, PAD, SOS, Vocabulary
from tp_transformer.errors import FolderError
from tp_transformer.model.folder import VOCABULARY, write_vocabulary


class TPTransformerTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    """Converts texts to the token ids of a `Vocabulary`, and back.

    Questions become `<sos> text <eos>`. Answers, given as `text_target`, become `text <eos>`: the
    labels, which the decoder reads with `<sos>` in front. Special tokens are not recognised in
    texts, where `<sos>` is five characters.

    Args:
        vocab_file: vocabulary.json of a model folder
        options: options of `PreTrainedTokenizer`
    """

    vocab_files_names = {"vocab_file": VOCABULARY}  # noqa: RUF012, as transformers declares it
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, vocab_file: str, **options: Any) -> None:
        try:
            values = json.loads(Path(vocab_file).read_text("utf-8"))
            self.vocabulary = Vocabulary.from_json(values)
        except (OSError, ValueError) as error:
            raise FolderError(f"{vocab_file} is not a vocabulary: {error}") from error
        self._ids = {token: index for index, token in enumerate(self.vocabulary.tokens)}
        self._is_target = False
        options |= {"pad_token": PAD, "bos_token": SOS, "eos_token": EOS, "unk_token": None}
        options |= {"clean_up_tokenization_spaces": False, "split_special_tokens": True}
        super().__init__(**options)

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return len(self.vocabulary)

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token."""
        return dict(self._ids)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        (ids,) = self.vocabulary.encode([text]).padded(self.vocabulary.pad)  # raises if unknown
        return [self.vocabulary.tokens[index] for index in ids[1:-1]]

    def _convert_token_to_id(self, token: str) -> int | None:
        return self._ids.get(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.vocabulary.spell(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Return the text of tokens."""
        return (" " if self.vocabulary.is_words else "").join(tokens)

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """Return a question with its start and end tokens, or an answer with its end token."""
        if token_ids_1 is not None:
            raise ValueError("a model of this package reads one text, not a pair of texts")
        start = [] if self._is_target else [self.vocabulary.sos]
        return [*start, *token_ids_0, self.vocabulary.eos]

    def _switch_to_input_mode(self) -> None:
        self._is_target = False

    def _switch_to_target_mode(self) -> None:
        self._is_target = True

    def _decode(
        self, token_ids: int | list[int], skip_special_tokens: bool = False, **options: Any
    ) -> str:
        """Return the text of token ids.

        If special tokens are skipped, this is the answer that `Model.solve` returns: without the
        start token, and up to the end token.
        """
        if not skip_special_tokens:
            return super()._decode(token_ids, **options)
        ids = np.array([token_ids] if isinstance(token_ids, int) else token_ids, dtype=np.int64)
        ids = ids[1:] if ids[:1] == self.vocabulary.sos else ids
        (text,) = self.vocabulary.decode(ids[None])
        return text

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write vocabulary.json."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        file = Path(save_directory) / f"{prefix}{VOCABULARY}"
        write_vocabulary(file, self.vocabulary)
        return (str(file),)
