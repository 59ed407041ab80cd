"""What an exported folder says of itself, and what transformers makes of it by itself."""

import json
import shutil

import pytest
import torch
from conftest import evaluate, metrics, run_script, same, train

from pretrained import hf, runs


def export(out, folder):
    """The model card, and what was printed."""
    said = run_script("pretrained/export.py", f"--out_dir={out}", f"--folder={folder}")
    return (folder / "README.md").read_text(), said


@pytest.mark.parametrize("method, attention", [("puma", "eager"), ("puma", "sdpa"), ("ar", "sdpa")])
def test_transformers_loads_it_without_foreign_code_or_a_mask(method, attention, tmp_path):
    transformers = pytest.importorskip("transformers", minversion="5.0")
    train(tmp_path / "run", f"--method={method}", "--max_iters=2")
    card, _ = export(tmp_path / "run", tmp_path / "folder")
    ours = runs.open_run(tmp_path / "run/checkpoint.pt").model
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


def test_the_card_says_what_where_from_and_how_good(trained, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    card, said = export(out, tmp_path / "a")
    (last,) = [line for line in metrics(out) if line["type"] == "eval"][-1:]
    assert f"validation loss {last['val_loss']:.4f}" in card
    assert f"| margin | {last['accuracy']['margin']:.1%} |" in card
    assert f"commit: {metrics(out)[0]['commit']}" in card and "2602.10314" in card
    config = json.loads(card.split("```json\n")[1].split("```")[0])
    recorded = metrics(out)[0]["config"].items()
    assert config == {k: v for k, v in recorded if k not in ("out_dir", "data")}
    for path in (tmp_path / "a").iterdir():
        assert str(path) in said

    evaluate(out, "--reveal=3")
    (row,) = json.loads((out / "eval.json").read_text())
    score = f"{row['accuracy']:.1%}"
    assert f"| top_k, 3 per step, solved | 20 | {score} |" in export(out, tmp_path / "b")[0]

    for name in ("metrics.jsonl", "eval.json"):
        (out / name).unlink()
    card, _ = export(out, tmp_path / "c")
    assert "None is recorded" in card and "commit: not known" in card


def test_nothing_is_written_where_the_card_cannot_be(trained, tmp_path, refused):
    out, folder = tmp_path / "run", tmp_path / "folder"
    shutil.copytree(trained, out)
    (out / "eval.json").write_text("[3]")
    assert "eval.json is damaged" in refused(export, out, folder) and not folder.exists()


def test_a_model_in_blocks_says_so(tmp_path):
    train(tmp_path / "run", "--block_schedule=[(0,4)]", "--max_iters=2")
    assert "in blocks of 4 tokens" in export(tmp_path / "run", tmp_path / "folder")[0]


def test_a_model_with_a_carry_is_refused(tmp_path, refused):
    train(tmp_path / "run", "--carry", "--max_iters=2")
    said = refused(export, tmp_path / "run", tmp_path / "folder")
    assert "no form that Hugging Face" in said and not (tmp_path / "folder").exists()
