"""lab/view.py: its page says what the models say."""

import base64
import json
import re
import zlib
from unittest.mock import patch

import torch
from conftest import ROOT

import checkpoint
import policies
import sudoku
from lab import view
from model import Transformer

MINI = ROOT / "results/weights/sudoku_mini"


def toy(folder, data=MINI, n=6, task="sudoku", **options):
    """A run with random weights, sure of nothing, so that rounding decides no order."""
    sizes = dict(vocab_size=n + 1, mask_token=n, length=n * n)
    args = sizes | dict(dim=24, layers=2, heads=3, mlp=20, theta=50.0) | options
    torch.manual_seed(0)
    model = Transformer(**args)
    for p in model.parameters():
        p.data += torch.randn_like(p) * 0.3
    config = dict(task=task, data=str(data), method="mdm", policy="top_k", variant="")
    config |= dict(k_schedule=[(0, 4)], tau=0.5)
    saved = {"args": args, "config": config, "averaged": model.state_dict(), "iteration": 5}
    checkpoint.save(saved, folder)
    return folder


def test_a_page_knows_the_tokens_that_it_shows(tmp_path):
    numbered = toy(tmp_path, data="2", n=13, task="lab.products", length=12)  # no text, no grid
    for folder in ROOT / "results/weights/gsm_mini", numbered:
        page = tmp_path / "page.html"
        with patch.multiple(view, out_dir=[str(folder)], out=str(page), examples=1):
            view.main()
        packed = re.search(r'type="text/plain">([^<]+)<', page.read_text())[1]
        data = json.loads(zlib.decompress(base64.b64decode(packed)))
        panels = [panel for way in data["runs"][0]["panels"] for panel in way]
        shown = [panel["tokens"] for panel in panels] + [data["truth"][0]]
        shown += [step[0] for panel in panels for step in panel["steps"]]
        assert {str(token) for row in shown for token in row} <= data["words"].keys()
    assert all(word.strip() == token for token, word in data["words"].items())


def test_a_page_loads_nothing():
    text = (ROOT / "lab/view.html").read_text()
    links = re.findall(r'href="([^"]+)"', text)
    assert links == re.findall(r"https?://[^\"'\s<]+", text) == ["https://arxiv.org/abs/2602.10314"]
    assert "default-src 'none'" in text and not re.search(r"\bsrc=|@import|url\(|import\(", text)


class Table:
    """A model whose logits are a table whatever it sees: the surer the later in the row."""

    mask_token = 4
    model = None
    table = torch.arange(8.0)[:, None] * 0.5 * torch.eye(5)[0]  # (L, V)

    def __call__(self, x):
        return x

    def logits(self, h):
        return self.table.expand(len(h), -1, -1)


def test_a_chain_reveals_the_surest_first():
    """In 4 stages of 2; or, above tau, 3 at once, one for stage 2's share, 2, and the rest."""
    x0 = torch.zeros(1, 8, dtype=torch.long)
    fifth = Table.table.softmax(-1)[5, 0].item()
    for tau, at in (1.0, [4, 4, 3, 3, 2, 2, 1, 1]), (fifth - 1e-4, [4, 4, 3, 3, 2, 1, 1, 1]):
        states = view.chain(Table(), x0, x0 == 0, policies.top_k, 2, tau)
        assert (torch.cat(states) == 4).sum(0).tolist() == at


@torch.no_grad()
def test_a_panel_says_what_the_model_says_of_each_state(tmp_path):
    model, _ = checkpoint.load_model(toy(tmp_path), "cpu")
    x0, prompt = map(torch.as_tensor, sudoku.load(MINI, 2).test[:2])
    hidden = ~prompt
    data = view.about(tmp_path, x0.long(), hidden)
    assert data["ways"] == ["top_k, K = 4, and all above 0.5", "top_k, 2 a step"]
    chains, samplers = data["panels"]
    assert [panel["tokens"] for panel in chains] == x0.tolist()
    for panel, masked in zip(chains + samplers, [*hidden, *hidden], strict=True):
        assert [step > 0 for step in panel["at"]] == masked.tolist()
        assert len(panel["steps"]) == max(panel["at"])
        for step, (guess, sure) in enumerate(panel["steps"], 1):
            left = [i for i in range(36) if panel["at"][i] >= step]
            now = [i for i in left if panel["at"][i] == step]  # the surest
            assert sorted(now) == sorted(sorted(left, key=lambda i: -sure[i])[: len(now)])
            x = [6 if i in left else panel["tokens"][i] for i in range(36)]
            p = model.logits(model(torch.tensor([x])))[0].softmax(-1)
            assert [guess[i] for i in left] == [int(p[i].argmax()) for i in left]
            assert all(sure[i] - 1.01 <= 1000 * p[i].max() <= sure[i] + 0.01 for i in left)
