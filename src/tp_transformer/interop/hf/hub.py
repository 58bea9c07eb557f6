"""A model of this package on the Hugging Face Hub, without transformers."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from huggingface_hub import PyTorchModelHubMixin, snapshot_download

from tp_transformer.errors import FolderError
from tp_transformer.model.family import load
from tp_transformer.model.folder import CONFIG, VOCABULARY, WEIGHTS
from tp_transformer.model.transformer import Transformer


class HubTransformer(
    PyTorchModelHubMixin,
    Transformer,
    library_name="tp-transformer",
    license="apache-2.0",
    paper_url="https://arxiv.org/abs/1910.06611",
    tags=["tp-transformer"],
):
    """A Transformer with `from_pretrained`, `save_pretrained` and `push_to_hub`.

    A repository has the files of a model folder, which `tp_transformer.load` reads too.
    """

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Load the folder of a model or a run, or a repository of the Hub, in evaluation mode.

        Args:
            pretrained_model_name_or_path: a folder or, if there is none of this name, a repository
                such as user/model
            options: options of `huggingface_hub.snapshot_download`, such as revision and token
        """
        name = str(pretrained_model_name_or_path)
        folder = Path(name)
        if not folder.is_dir():
            files = [WEIGHTS, CONFIG, VOCABULARY]
            folder = Path(snapshot_download(name, allow_patterns=files, **options))
        model = load(folder)
        if not isinstance(model, Transformer):
            raise FolderError(f"{name} has a model of the architecture {model.architecture()}")
        made = cls.from_weights(model.config, model.vocabulary, model.state_dict())
        made.max_answer = model.max_answer
        return made.eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write the files of a model folder; `save_pretrained` adds a card."""
        with TemporaryDirectory() as temporary:
            self.save(Path(temporary) / "model")
            shutil.copytree(Path(temporary) / "model", save_directory, dirs_exist_ok=True)
