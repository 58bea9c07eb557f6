"""The table of presets, with the parameter counts of the paper, and the bundled models."""

from pathlib import Path

from rich.table import Table

from tp_transformer.model import bundled
from tp_transformer.model.checkpoint import count_parameters, model_config
from tp_transformer.model.recurrent import LSTMConfig
from tp_transformer.scoring.published import TABLE_1
from tp_transformer.scoring.results import Results
from tp_transformer.settings import preset_names, read


def models_table() -> Table:
    """Return the table of presets: those of Table 1 in its order, then the others."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("preset")
    table.add_column("binding")
    for heading in ("parameters", "paper", "size", "d_ff", "heads", "layers"):
        table.add_column(heading, justify="right")
    others = [name for name in preset_names() if name not in TABLE_1]
    for name in [*TABLE_1, *others]:
        config = model_config(read(name)["model"])
        if isinstance(config, LSTMConfig):
            shape = ["-", str(config.d_hidden), "-", "-", "1"]
        else:
            c = config
            layers = f"{c.n_layers}+{c.n_layers}"
            shape = [c.binding, str(c.d_model), str(c.d_ff), str(c.n_heads), layers]
        paper = TABLE_1[name].weights if name in TABLE_1 else "-"
        table.add_row(name, shape[0], f"{count_parameters(name):,}", paper, *shape[1:])
    return table


def bundled_lines(folder: Path) -> list[str]:
    """Describe the models of a folder that `tpt bundle` wrote; an empty list if there are none."""
    lines = []
    for name in bundled.names(folder):
        results = Results.read(folder / name / bundled.RESULTS)
        scores = ", ".join(
            f"{score.average[0]:.1%} {results.task.title(split).lower()}"
            for split, score in results.splits.items()
        )
        lines += [f"bundled: {name} ({scores})", f"  card: {folder / name / bundled.CARD}"]
    return lines
