"""Questions, and models of every binding that answer them with more than nothing."""

import random

import torch

import tp_transformer as tpt
from tp_transformer.model.batch import Batch


def questions(count, seed=0):
    """Sums of numbers of different lengths, with their answers."""
    chance = random.Random(seed)
    pairs = [
        (chance.randrange(10 ** chance.randrange(1, 4)), chance.randrange(9)) for _ in range(count)
    ]
    return [f"What is {a} + {b}?" for a, b in pairs], [str(a + b) for a, b in pairs]


def model_of(binding, steps=0, **fields):
    """A small model, trained for some steps."""
    torch.manual_seed(1)
    options = {"rank": 5} if binding == "low-rank" else {}
    sizes = {"d_model": 24, "d_ff": 24, "n_layers": 2, "n_heads": 4}
    model = tpt.build("tp-transformer-tiny", binding=binding, **{**sizes, **options, **fields})
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(steps):
        batch = Batch.from_text(*questions(32, seed=step), model.vocabulary)
        optimizer.zero_grad()
        model.loss(batch).mean.backward()
        optimizer.step()
    return model.eval()
