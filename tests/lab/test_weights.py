"""The weights of results/weights/ say what they said in the code that trained them (05286a5)."""

import pytest
import torch
from conftest import ROOT

from lab import evaluate

SAID = {  # logits of the first held-out row, three of each token; then with its state as a carry
    "sudoku_mini": [[-3.87911, 3.65221, -3.25238, -3.97244, -4.17534, 3.99096]],
    "sudoku_nine": [
        [-2.87628, -3.84078, -0.49262, -3.09051, -2.78964, -2.50657],
        [-2.47043, -3.27809, 0.61869, -2.73082, -1.24796, -3.30129],
    ],
    "gsm_mini": [[-3.98748, -0.87335, -0.39497, -1.33263, 0.04647, -1.62952]],
    "gsm_mini_mdm": [[-3.02092, -1.24648, -1.03585, -3.27577, -1.27769, -0.06811]],
}


@pytest.mark.parametrize("name", SAID)
@torch.no_grad()
def test_converted_weights(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    model, _, task, _ = evaluate.open_run(f"results/weights/{name}", 1, "cpu")
    x0, prompt = map(torch.as_tensor, task.test[:1])
    x = torch.where(prompt, x0, model.mask_token).long()
    carry = []
    for expected in SAID[name]:
        h = model(x, *carry)
        found = model.logits(h)[0, :, :3].flatten()[[0, 20, 40, 60, 80, 100]]
        torch.testing.assert_close(found, torch.tensor(expected), atol=2e-4, rtol=0)
        carry = [h]
