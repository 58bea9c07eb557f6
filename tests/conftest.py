import pytest
import torch
from hypothesis import settings

# How long an example takes depends on what else the machine does.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

# The tensors of tests are tiny: a second thread would only wait for the first.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
