"""The weights of results/weights/ say what they said in the code that trained them (05286a5)."""

import numpy as np
import pytest
import torch
from conftest import ROOT

import checkpoint

SAID = {  # logits of the first held-out puzzle, three of each cell; then with its state as a carry
    "sudoku_mini": [[-3.87911, 3.65221, -3.25238, -3.97244, -4.17534, 3.99096]],
    "sudoku_nine": [
        [-2.87628, -3.84078, -0.49262, -3.09051, -2.78964, -2.50657],
        [-2.47043, -3.27809, 0.61869, -2.73082, -1.24796, -3.30129],
    ],
}


@pytest.mark.parametrize("name", SAID)
@torch.no_grad()
def test_converted_weights(name):
    model, _ = checkpoint.load_model(ROOT / "results" / "weights" / name, "cpu")
    puzzle, solution = torch.as_tensor(np.load(ROOT / f"results/weights/{name}/test.npy")[0]).long()
    x = torch.where(puzzle > 0, solution - 1, model.mask_token)[None]
    carry = []
    for expected in SAID[name]:
        h = model(x, *carry)
        found = model.logits(h)[0, :, :3].flatten()[[0, 20, 40, 60, 80, 100]]
        torch.testing.assert_close(found, torch.tensor(expected), atol=2e-4, rtol=0)
        carry = [h]
