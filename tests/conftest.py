import pytest
import torch

# The tensors of tests are tiny: a second thread would only wait for the first.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
