"""lab/harness.py on a tiny run, against sample.py; and a task of the harness from the shell."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import ENV, ROOT, run

import checkpoint
import sample
from data import rows
from lab import own_text
from policies import top_k

pytest.importorskip("lm_eval")
from lm_eval.api.instance import Instance

from lab.harness import Puma

TASK = """
task: mine
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}\\n"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: "\\n\\n", max_gen_toks: 5}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Token files, and a run on them with random weights."""
    folder = tmp_path_factory.mktemp("run")
    writer = rows.Folder(folder / "data", rows.tokenizer("bytes"), 24, "sums")
    pairs = rows.of([(f"{i} + {i}?", f"{2 * i}") for i in range(50)])
    writer.add(pairs, 0.5, workers=1)
    writer.finish()
    code, output = run(folder / "data", folder / "run", "--task=text", "--max_iters=1")
    assert code == 0, output
    torch.manual_seed(7)
    saved = torch.load(folder / "run" / "ckpt.pt")
    for p in saved["averaged"].values():
        torch.nn.init.normal_(p)  # says more than weights that are hardly trained
    torch.save(saved, folder / "run" / "ckpt.pt")
    return folder


def answers(puma, *requests):
    instances = [Instance("generate_until", {}, request, 0) for request in requests]
    return puma.generate_until(instances, disable_tqdm=True)


def test_answers_are_those_of_the_sampler_cut(folder):
    problem = own_text.load(folder / "data", 1)
    model, _ = checkpoint.load_model(folder / "run", "cpu")
    x0, prompt = problem.parse("17 + 4?")
    x, _ = sample.generate(model, torch.as_tensor(x0), torch.as_tensor(~prompt), top_k, 3)
    whole = bytes(x[0][8:].tolist()).decode(errors="replace")  # an id is a byte
    assert len({*whole}) > 3
    puma = Puma(out_dir=str(folder / "run"), reveal=3, batch_size=2, device="cpu")
    ask = "17 + 4?\n"
    stop = whole[4:6]
    cuts = {}, {"until": stop}, {"until": ["absent", stop]}, {"max_gen_toks": 3}
    found = answers(puma, *((ask, how) for how in cuts))
    assert found[:3] == [whole, *2 * [whole.partition(stop)[0]]] and len(found[3]) == 3
    assert whole.startswith(found[3])
    long = answers(puma, ("x" * 90 + ask, {}))  # the last half of a row is seen
    assert long == answers(puma, ("x" * 4 + ask, {})) and long != [whole]


@torch.no_grad()
def test_choices_against_a_loop(folder):
    """What the model itself says after six tokens, and four others; the surest goes first."""
    puma = Puma(out_dir=str(folder / "run"), batch_size=2, device="cpu")
    puma.tokenizer = SimpleNamespace(encode=list, special={}, end=256)
    x = torch.tensor([*range(6), *[256] * 18])
    said, _ = sample.generate(puma.model, x[None], (torch.arange(24) // 3 == 2)[None], top_k, 1)
    asked, expected = [], []
    for choice in said[0, 6:9].tolist(), [3, 4, 5, 6]:
        left = {6 + i: token for i, token in enumerate(choice)}
        total, best = 0.0, True
        while left:
            row = x.index_copy(0, 6 + torch.arange(len(choice)), torch.tensor(choice))
            row[[*left]] = puma.model.mask_token
            p = puma.model.logits(puma.model(row[None]))[0].softmax(-1)
            i = max(left, key=lambda i: p[i].max())
            best &= p[i].argmax().item() == left[i]
            total += p[i, left.pop(i)].log().item()
        expected.append((pytest.approx(total, rel=1e-4), best))
        asked.append(Instance("loglikelihood", {}, (range(6), choice), 0))
    assert puma.loglikelihood(asked, disable_tqdm=True) == expected
    assert [best for _, best in expected] == [True, False]


@pytest.mark.parametrize(("family", "lora"), [("bert", 0), ("qwen2", 0), ("qwen2", 4)])
def test_a_folder_of_hf_answers_as_the_trained_model(family, lora, tmp_path, monkeypatch):
    """Whole weights and adapters; the mask token of qwen2 is a new row of its vocabulary."""
    pytest.importorskip("peft")
    from test_hf import make, write_model

    from lab import hf

    write_model(tmp_path / "model", family)
    net = make(family)
    net.resize_token_embeddings(30 if family == "bert" else 29)
    net.save_pretrained(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text('{"question": "ab", "answer": "ba"}\n' * 9)
    settings = {"model": f"{tmp_path}/model", "data": f"{tmp_path}/rows.jsonl", "lora": lora}
    settings |= {"out_dir": f"{tmp_path}/out", "length": 12, "held_out": 1, "batch_size": 4}
    settings |= {"max_iters": 2, "lr": 1e-3, "samplers": []}
    for name, value in settings.items():
        monkeypatch.setattr(hf, name, value)
    (tmp_path / "out").mkdir()
    parts = hf.start()
    hf.main(*parts)
    net, coder, end, how, *_ = parts
    ids = coder("abc\n").input_ids
    x = torch.tensor([ids + [end] * (12 - len(ids))])
    scored = hf.Scored(net.eval(), **how)
    filled, _ = sample.generate(scored, x, torch.arange(12)[None] >= len(ids), top_k, 3)
    expected = coder.decode(filled[0, len(ids) :].tolist())
    puma = Puma(pretrained=f"{tmp_path}/out", reveal=3)
    assert expected and answers(puma, ("abc\n", {})) == [expected]
    assert puma.text([4, end, 5], {}) == coder.decode([4])
    with pytest.raises(SystemExit, match=r"has no puma\.json: lab/hf\.py has not written it"):
        Puma(pretrained=f"{tmp_path}/model")
    with pytest.raises(SystemExit, match="expected out_dir=RUN of train"):
        Puma()


@pytest.mark.slow
def test_the_harness_runs_a_task(folder, tmp_path):
    rows = [{"question": f"What is {i}?", "answer": "no"} for i in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text(TASK.format(data=tmp_path / "rows.jsonl"))
    command = [sys.executable, "lab/harness.py", "--model", "puma", "--model_args"]
    command += [f"out_dir={folder}/run,tau=0.9", "--tasks", "mine", "--include_path", tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True)
    assert "|exact_match|" in done.stdout, done.stderr
