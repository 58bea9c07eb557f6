import torch

from tp_transformer import Batch
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.model.loss import token_loss


def test_loss_is_the_sum_over_the_symbols_of_the_answers():
    vocabulary = MATHEMATICS.vocabulary
    batch = Batch.from_text(["a", "b", "c"], ["12", "", "345"], vocabulary)
    logits = torch.randn(*batch.target_input.shape, 72, dtype=torch.float64)
    loss = token_loss(logits, batch)
    assert loss.n_tokens == 3 + 1 + 4  # characters and end symbols
    total = 0.0
    for row, answer in enumerate(["12", "", "345"]):
        for position, symbol in enumerate([*answer, "<eos>"]):
            scores = logits[row, position]
            total -= scores[vocabulary.tokens.index(symbol)] - torch.logsumexp(scores, 0)
    torch.testing.assert_close(loss.total, total)
    torch.testing.assert_close(loss.mean, total / 8)


def test_parts_of_a_batch_add_up():
    vocabulary = MATHEMATICS.vocabulary
    answers = ["1", "22", "333", "4444"]
    whole = Batch.from_text(["q"] * 4, answers, vocabulary)
    logits = torch.randn(4, 5, 72, dtype=torch.float64)
    parts = [
        token_loss(
            logits[rows, : len(answers[rows.stop - 1]) + 1],
            Batch.from_text(["q"] * 2, answers[rows], vocabulary),
        )
        for rows in (slice(0, 2), slice(2, 4))
    ]
    loss = token_loss(logits, whole)
    torch.testing.assert_close(parts[0].total + parts[1].total, loss.total)
    assert parts[0].n_tokens + parts[1].n_tokens == loss.n_tokens


def test_half_precision_scores_are_summed_in_single_precision():
    batch = Batch.from_text(["q"], ["1"], MATHEMATICS.vocabulary)
    loss = token_loss(torch.randn(1, 2, 72).bfloat16(), batch)
    assert loss.total.dtype == torch.float32
