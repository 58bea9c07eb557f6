"""A smoke test of an installed wheel, without pytest and without extras: `make test-core`."""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch

import tp_transformer as tpt
from tp_transformer.model import bundled


def check(holds, message):
    if not holds:
        raise SystemExit(f"smoke test: {message}")


def main():
    check(version("tp-transformer") == tpt.__version__, "the versions differ")
    check("site-packages" in tpt.__file__, f"{tpt.__file__} is not the installed package")
    check(bundled.names(), "the wheel has no bundled model")
    model = tpt.load()
    answers = model.solve(["Is 7 prime?", "What is the hundreds digit of 31415?"])
    check(len(answers) == 2, answers)
    for name in tpt.preset_names():
        built = tpt.build(name)
        print(f"{name}: {built.n_parameters:,} parameters")
        with tempfile.TemporaryDirectory() as folder:
            if built.n_parameters < 10**6:
                built.save(Path(folder) / "model")
                loaded = tpt.load(Path(folder) / "model")
                check(loaded.solve(["1"], max_length=3) == built.solve(["1"], max_length=3), name)
    attention = tpt.TPMultiheadAttention(16, 4, batch_first=True)
    attention.load_state_dict(torch.nn.MultiheadAttention(16, 4, batch_first=True).state_dict())
    state = torch.randn(2, 5, 16)
    output, _ = attention(state, state, state)
    output.sum().backward()
    check(output.shape == state.shape, "TPMultiheadAttention")
    unneeded = {"cyclopts", "pyarrow", "rich"} & set(sys.modules)
    check(not unneeded, f"{sorted(unneeded)} were imported")
    python = ".".join(map(str, sys.version_info[:3]))
    print(
        f"tp-transformer {tpt.__version__}, Python {python}, torch {torch.__version__}: {answers}"
    )


if __name__ == "__main__":
    main()
