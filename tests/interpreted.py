"""Without a GPU, kernels run through Triton's interpreter: what is long there is marked slow."""

import pytest
import torch

LONG = [] if torch.cuda.is_available() else [pytest.mark.slow]
