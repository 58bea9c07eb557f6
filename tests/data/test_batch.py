import pytest
import torch

from tp_transformer import Batch, Vocabulary

VOCABULARY = Vocabulary()


def test_the_target_is_shifted_by_one():
    batch = Batch.from_text(["1+1", "12"], ["2", "-12"], VOCABULARY)
    assert VOCABULARY.decode(batch.target_output.numpy()) == ["2", "-12"]
    assert batch.target_input[:, 0].tolist() == [VOCABULARY.sos] * 2
    assert torch.equal(batch.target_input[:, 1:], batch.target_output[:, :-1])
    assert batch.target_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.source.tolist()[1][-1] == VOCABULARY.pad
    assert batch.source.shape == (2, 5)


def test_moves_as_a_whole():
    batch = Batch.from_text(["1"], ["2"], VOCABULARY).to("meta")
    assert batch.source.device.type == batch.target.device.type == "meta"


def test_refuses_a_question_without_an_answer():
    with pytest.raises(ValueError, match="2 questions but 1 answers"):
        Batch.from_text(["1", "2"], ["3"], VOCABULARY)
