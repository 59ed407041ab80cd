"""lab/harness.py on a tiny run against sample.py, on folders of lab/hf.py against its --prompt."""

import subprocess
import sys

import pytest
import torch
from conftest import ENV, ROOT, prepare, run, same, write_lines

import checkpoint
import sample
from policies import top_k

pytest.importorskip("lm_eval")
pytest.importorskip("peft")
from lm_eval.api.instance import Instance
from test_hf import call, folder  # noqa: F401

from lab.harness import Puma

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on bytes of text, hardly trained."""
    place = tmp_path_factory.mktemp("run")
    pairs = [{"q": f"{i} + {i}?", "a": f"{2 * i}"} for i in range(50)]
    flags = {"prompt": "q", "response": "a", "tokenizer": "bytes", "length": 24, "val": 0.5}
    source = write_lines(place / "rows.jsonl", pairs)
    data = prepare("jsonl", source=source, **flags, out=place / "data")
    code, said = run(data, place / "run", "--task=lab.text", "--max_iters=1")
    assert code == 0, said
    return place


def answers(puma, *requests):
    instances = [Instance("generate_until", {}, request, 0) for request in requests]
    return puma.generate_until(instances, disable_tqdm=True)


def test_answers_are_those_of_the_sampler_cut(trained):
    model, _ = checkpoint.load_model(trained / "run", "cpu")
    puma = Puma(out_dir=str(trained / "run"), reveal=3, batch_size=2, device="cpu")
    assert same(puma.model.state_dict(), model.state_dict())
    torch.manual_seed(7)
    for p in puma.model.parameters():
        torch.nn.init.normal_(p)  # says more than weights that are hardly trained
    ask = "17 + 4?\n"
    x = torch.tensor([[*ask.encode(), *[0] * 16]])
    x, _ = sample.generate(puma.model, x, torch.arange(24)[None] >= 8, top_k, 3)
    whole = bytes(x[0][8:].tolist()).decode(errors="replace")  # an id is a byte
    assert len({*whole}) > 3
    stop = whole[4:6]
    cuts = {}, {"until": stop}, {"until": ["absent", stop]}, {"max_gen_toks": 3}
    found = answers(puma, *((ask, how) for how in cuts))
    assert found == [whole, *2 * [whole.partition(stop)[0]], whole[:3]]
    assert answers(puma, (f"\r\n{ask[:-1]}\r\n", {})) == [whole]  # a prompt as in training
    long = answers(puma, ("x" * 90 + ask, {}))  # the last half of a row is seen
    assert long == answers(puma, ("x" * 4 + ask, {})) and long != [whole]


def test_a_folder_of_hf_answers_as_its_prompt_command(folder, tmp_path, capsys):  # noqa: F811
    """Adapters, and a mask token that is a new one."""
    where = f"--model={folder}/qwen2", f"--out_dir={tmp_path}", "--lora=4"
    call(folder, *where, "--max_iters=2")
    expected = []
    for prompt in "ab", "cd", "xy":
        capsys.readouterr()
        with pytest.raises(SystemExit):
            call(folder, f"--model={tmp_path}", f"--prompt={prompt}")
        expected.append(capsys.readouterr().out.removesuffix("\n"))
    puma = Puma(pretrained=str(tmp_path), tau=0.99, batch_size=2)
    assert any(expected) and answers(puma, ("ab\n", {}), ("cd\n", {}), ("xy\n", {})) == expected


def test_the_harness_runs_a_task(trained, tmp_path):
    write_lines(tmp_path / "rows.jsonl", [{"question": f"{i}?", "answer": "no"} for i in "123"])
    task = {"task": "mine", "dataset_path": "json", "output_type": "generate_until"}
    task |= {"dataset_kwargs": {"data_files": {"test": f"{tmp_path}/rows.jsonl"}}}
    task |= {"test_split": "test", "doc_to_text": "{{question}}\n", "doc_to_target": "{{answer}}"}
    task |= {"generation_kwargs": {"until": "\n\n"}, "metric_list": [{"metric": "exact_match"}]}
    write_lines(tmp_path / "mine.yaml", [task])  # YAML reads JSON
    command = [sys.executable, "lab/harness.py", "--model", "puma", "--model_args"]
    command += [f"out_dir={trained}/run,tau=0.9", "--tasks", "mine", "--include_path", tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True)
    assert "|exact_match|" in done.stdout, done.stderr
