"""What an exported folder says of itself, and what transformers makes of it by itself."""

import hashlib
import json
import os
import shutil

import pytest
import safetensors
import torch
from conftest import HOUSE, ROOT, evaluate, metrics, run_script, same, train

import tasks
from engine import checkpoint
from pretrained import hf
from runs.saved import load_task, open_run


def export(out, folder):
    """The model card, and what was printed."""
    said = run_script("pretrained/export.py", f"--out_dir={out}", f"--folder={folder}")
    return (folder / "README.md").read_text(), said


@pytest.mark.parametrize("method, attention", [("puma", "eager"), ("puma", "sdpa"), ("ar", "sdpa")])
def test_transformers_loads_it_without_foreign_code_or_a_mask(method, attention, tmp_path):
    transformers = pytest.importorskip("transformers", minversion="5.0")
    train(tmp_path / "run", f"--method={method}", "--max_iters=2")
    card, _ = export(tmp_path / "run", tmp_path / "folder")
    ours = open_run(tmp_path / "run/checkpoint.pt").model
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "folder", trust_remote_code=False, attn_implementation=attention
    ).eval()
    x = torch.randint(4, (3, 16))
    with torch.no_grad():
        found, expected = theirs(x).logits[..., :4], ours.logits(ours(x))[..., :4]
    if method == "ar":
        found, expected = found[:, :-1], expected[:, 1:]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert ("scores token i + 1" in card) == ours.causal
    args = hf.read_shape(tmp_path / "folder") | {"length": 16}
    assert args["causal"] == args["shifted"] == ours.causal
    assert same(hf.load(tmp_path / "folder", args).state_dict(), ours.state_dict())
    with pytest.raises(SystemExit, match="already exists"):
        export(tmp_path / "run", tmp_path / "folder")


def test_the_card_says_what_where_from_and_how_good(trained, tmp_path, refused):
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    card, said = export(out, tmp_path / "a")
    (last,) = [line for line in metrics(out) if line["type"] == "eval"][-1:]
    assert f"validation loss {last['val_loss']:.4f}" in card
    assert f"margin {last['accuracy']['margin']:.1%} solved" in card
    assert f"commit: {metrics(out)[0]['commit']}" in card and "2602.10314" in card
    config = json.loads(card.split("```json\n")[1].split("```")[0])
    recorded = metrics(out)[0]["config"].items()
    assert config == {k: v for k, v in recorded if k not in ("out_dir", "data")}
    for path in (tmp_path / "a").iterdir():
        assert str(path) in said

    evaluate(out, "--reveal=3")
    (row,) = json.loads((out / "eval.json").read_text())
    score = f"{row['accuracy']:.1%}"
    assert f"| top_k, 3 per step, solved | 20 | {score} [" in export(out, tmp_path / "b")[0]

    (out / "eval.json").write_text("[3]")
    assert "eval.json is damaged" in refused(export, out, tmp_path / "c")
    assert not (tmp_path / "c").exists()

    for name in ("metrics.jsonl", "eval.json"):
        (out / name).unlink()
    card, _ = export(out, tmp_path / "c")
    assert "None is recorded" in card and "commit: not known" in card


@pytest.mark.parametrize(
    "what", ["huggingface_hub.save_torch_state_dict", "engine.files.write_json"]
)
def test_no_room_leaves_nothing(what, trained, tmp_path, refused, monkeypatch):
    def full(*_, **__):
        raise OSError("full") if "files" in what else safetensors.SafetensorError("full")

    monkeypatch.setattr(what, full)
    assert "full" in refused(export, trained, tmp_path / "a") and not [*tmp_path.iterdir()]


def test_a_model_in_blocks_says_so(tmp_path):
    train(tmp_path / "run", "--block_schedule=[(0,4)]", "--max_iters=2")
    assert "in blocks of 4 tokens" in export(tmp_path / "run", tmp_path / "folder")[0]


def test_an_exported_run_is_sampled_and_evaluated_as_the_run_is(tmp_path):
    """With a carry, which transformers has no form for; the weights in float16."""
    out, folder = tmp_path / "run", tmp_path / "folder"
    train(out, "--carry", "--max_iters=2")
    said = run_script("pretrained/export.py", f"--out_dir={out}", f"--folder={folder}", "--half")
    assert "For sample.py and eval.py alone" in said
    ours, theirs = open_run(out), open_run(folder)
    half = {name: weight.half().float() for name, weight in ours.model.state_dict().items()}
    assert same(theirs.model.state_dict(), half) and theirs.model.carries == 32
    task, less = tasks.get("sudoku").load(ours.config), load_task(theirs.config)
    assert (task.test.puzzles == less.test.puzzles).all() and len(less.train) == 1
    assert "2 per step" in run_script("sample.py", f"--out_dir={folder}")
    evaluate(folder, "--reveal=3")
    source, whole, parts = f"--init_from={folder}", tmp_path / "whole", tmp_path / "parts"
    train(whole, source, "--max_iters=3")  # with the carry of the weights
    train(parts, source, "--max_iters=0")
    start = checkpoint.load(parts / "checkpoint.pt")
    assert same(start["model"], half) and start["config"]["carry"]
    path, index = folder / "model.safetensors", folder / hf.INDEX
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for change, message in (
        (lambda: None, "not those that were exported"),
        (lambda: index.write_text('{"weight_map": [1]}'), "index.json is damaged"),
        (lambda: (index.unlink(), path.unlink(), os.mkfifo(path)), "model.safetensors: not a file"),
        (lambda: (folder / "run.json").write_text("{}"), "run.json is not a checkpoint of this"),
    ):
        change()
        with pytest.raises(ValueError, match=message):
            open_run(folder)
    shutil.rmtree(folder)
    train(parts, "--init_from=resume", "--max_iters=3")
    assert same(*(checkpoint.load(run / "checkpoint.pt") for run in (whole, parts)))


def test_a_carry_begins_without_effect_on_weights_that_had_none(trained, tmp_path):
    train(tmp_path, f"--init_from={trained}", "--carry", "--loops=2", "--max_iters=0")
    saved = checkpoint.load(tmp_path / "checkpoint.pt")
    start = saved["model"]
    assert saved["model_args"]["loops"] == 2  # they share the weights
    added = start.pop("model.carry_norm.weight"), start.pop("model.carry_norm.bias")
    assert same(start, checkpoint.load(trained / "checkpoint.pt")["ema"])
    assert not any(part.any() for part in added)


def test_text_needs_no_data_to_be_sampled_elsewhere(tmp_path, refused):
    transformers = pytest.importorskip("transformers", minversion="5.0")
    data, out, folder = tmp_path / "data", tmp_path / "run", tmp_path / "folder"
    source, flags = tmp_path / "a.jsonl", ("--dataset=own_text", f"--data_dir={data}")
    source.write_text("".join(f'{{"q": "{n} and", "a": "{n}"}}\n' for n in range(40)))
    columns = "--prompt=q", "--response=a", "--length=16", "--val=0.3"
    run_script(HOUSE / "data/jsonl/prepare.py", f"--source={source}", f"--out={data}", *columns)
    train(out, *flags, "--max_iters=2", "--test_examples=4")
    export(out, folder)
    shutil.rmtree(data)
    for each in out, folder:
        said = run_script("sample.py", f"--out_dir={each}", "--prompt=7 and")
        assert said.startswith("7 and\n")
        assert "no data: sample with" in refused(run_script, "sample.py", f"--out_dir={each}")
    (out / "tokenizer.tiktoken").unlink()
    (out / "tokenizer.tiktoken").symlink_to(source)  # a private file, in a stranger's run
    said = refused(export, out, tmp_path / "b")
    assert "not what was written to it" in said and not (tmp_path / "b").exists()
    with pytest.raises(ValueError):
        transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", ["sudoku_mini", "sudoku_nine", "gsm_mini"])
def test_the_models_that_come_with_the_code_solve_their_first_problem(name):
    weights = (ROOT / "weights" / name / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() in (ROOT / "weights/README.md").read_text()
    printed = run_script("sample.py", f"--out_dir=weights/{name}", "--device=cpu")
    assert ("# correct" if name == "gsm_mini" else " solved\n") in printed
