"""The front door: what there is to see, computed while you watch."""

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from tp_transformer.model.attention import TPMultiheadAttention
from tp_transformer.model.binding import BINDINGS, make_binding
from tp_transformer.model.family import build, count_parameters, model_config
from tp_transformer.model.recurrent import LSTMConfig
from tp_transformer.published import TABLE_1
from tp_transformer.settings import preset_names, read


def demo(console: Console | None = None) -> None:
    """Show the models, what binding does, a trace, and TP-attention inside torch's own layer."""
    console = console or Console()
    torch.manual_seed(0)
    console.rule("The models, beside Table 1 of the paper")
    console.print(models_table())
    console.rule("Does a/b look different from b/a?")
    console.print(
        "Fillers a and b are bound to the roles of numerator and denominator and added;\n"
        "then again with a and b exchanged. Relative distance of the two sums:"
    )
    for name in BINDINGS:
        console.print(f"  {name:12} {swap_distance(name):.3f}")
    console.rule("A look inside")
    _show_trace(console)
    console.rule("TP-attention inside torch.nn.TransformerEncoderLayer")
    before, after = fit_a_layer()
    console.print(f"mean squared error on a toy task: {before:.3f}, after 50 steps {after:.3f}")


def models_table() -> Table:
    """Every preset: those of Table 1 in its order, then the smaller sizes."""
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


def swap_distance(name: str, d_head: int = 64) -> float:
    """How far a*r1 + b*r2 is from a*r2 + b*r1 under a binding, relative to its length."""
    binding = make_binding(name, 1, d_head, rank=d_head if name == "low-rank" else None)
    a, b, r1, r2 = torch.randn(4, 1, 1, d_head)
    with torch.no_grad():
        structure = binding(a, r1) + binding(b, r2)
        exchanged = binding(a, r2) + binding(b, r1)
    return ((structure - exchanged).norm() / structure.norm()).item()


def fit_a_layer() -> tuple[float, float]:
    """Train torch's encoder layer with our attention: each position times the mean of all."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    layer.self_attn = TPMultiheadAttention(16, 4, batch_first=True)  # type: ignore[assignment]
    optimizer = torch.optim.Adam(layer.parameters(), lr=3e-3)
    inputs = torch.randn(64, 9, 16)
    wanted = inputs.mean(dim=1, keepdim=True) * inputs
    losses = []
    for _ in range(51):
        error: Tensor = (layer(inputs) - wanted).square().mean()
        losses.append(error.item())
        optimizer.zero_grad()
        error.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return losses[0], losses[-1]


def _show_trace(console: Console) -> None:
    model = build("tp-transformer-tiny")
    question, role, output = "What is 3 + 4?", "encoder.0.self_attention.role", "encoder.1.output"
    with model.trace(role, output) as trace:
        answer = model.solve([question])[0]
    console.print(f"The tiny size, untrained, answers {question!r} with {answer!r}.")
    console.print(f"{role} is {tuple(trace[role].shape)}: (batch, head, position, d_head).")
    with model.trace(output, edit={role: torch.zeros_like}) as edited:
        model.solve([question])
    change = (edited[output] - trace[output]).norm() / trace[output].norm()
    console.print(f"Set to zero, it moves {output} by {change:.0%} of its length.")
