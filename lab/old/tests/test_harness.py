"""The adapter for the lm-evaluation-harness, on a local task and a tiny model of random weights."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from conftest import train

pytest.importorskip("lm_eval", reason="needs lm_eval")  # takes seconds: only where it is there

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from examples.harness import Puma
from runs.likelihood import hidden_nll
from runs.saved import load_task
from sample import generate
from tasks import problems_on
from tasks.text import answer_text

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}\\n"
{rest}
"""
GENERATE = """
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"]}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOOSE = """
doc_to_target: 0
doc_to_choice: ["return 1", "return 22"]
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    train(out, "--dataset=text", "--train_examples=300", "--test_examples=2", "--max_iters=0")
    return out


@pytest.fixture(scope="module")
def puma(run):
    return Puma(str(run), masks=4, reveal=60)


def request(kind, *arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


@pytest.mark.slow
def test_the_harness_runs_tasks_of_both_kinds(puma, tmp_path):
    rows = [{"question": f"What is {i}?", "answer": "no"} for i in range(3)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, kind, rest in (
        ("mine", "generate_until", GENERATE), ("choice", "multiple_choice", CHOOSE),
    ):  # fmt: skip
        form = dict(name=name, kind=kind, rest=rest, data=tmp_path / "data.jsonl")
        (tmp_path / f"{name}.yaml").write_text(TASK.format(**form))
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = simple_evaluate(puma, tasks=["mine", "choice"], task_manager=tasks, log_samples=True)
    assert found["results"]["mine"]["exact_match,none"] == 0
    assert found["results"]["choice"]["acc,none"] in (0, 1 / 3, 2 / 3, 1)
    assert len(found["samples"]["mine"]) == 3


def test_answers_are_those_of_the_sampler_cut(puma):
    """The same prompt by the task and by the harness."""
    task = load_task(puma.saved.config)
    x, hidden = problems_on(torch.device("cpu"), task.test, [0])
    row = generate(puma.saved.model, x, hidden, puma.sampler)[0][0]
    whole = answer_text(puma.encoding, row[hidden[0]].tolist())
    prompt, size = puma.encoding.decode(x[0][~hidden[0]].tolist()), (~hidden[0]).sum()
    middle = whole[len(whole) // 2 :][:4]
    for settings, expected in (
        ({}, whole),
        ({"until": [middle]}, whole.partition(middle)[0]),
        ({"until": middle}, whole.partition(middle)[0]),
        ({"max_gen_toks": 3}, puma.encoding.decode(row[size : size + 3].tolist())),
    ):
        assert puma.generate_until([request("generate_until", prompt, settings)]) == [expected]
    (answer,) = puma.generate_until([request("generate_until", prompt * 50, {})])
    assert isinstance(answer, str), "a context longer than the row"


def test_the_bound_is_that_of_all_masks(run):
    """Of three tokens: the seven masks, enumerated. In the mean over many draws it is the same."""
    puma = Puma(str(run), masks=300, batch_size=300)
    model, context = puma.saved.model, puma.ids("What is")
    answer = puma.encoding.encode("return 22")[:3]
    x0 = torch.tensor([context + answer])
    total = 0.0
    for mask in itertools.product([False, True], repeat=3):
        if h := sum(mask):
            hidden = torch.tensor([[False] * len(context) + list(mask)])
            nll = hidden_nll(model, x0, hidden).sum().item()
            total += nll / h / math.comb(3, h)  # L_eff E[mean], h uniform
    assert puma.bound(context, answer) == pytest.approx(-total, abs=0.04)
    assert puma.bound(context, []) == 0
    text = puma.encoding.decode(answer)
    ((bound, greedy),) = puma.loglikelihood([request("loglikelihood", "What is", text)])
    assert bound == puma.bound(context, answer) and greedy is False


def test_a_long_text_is_scored_row_by_row(puma):
    text = "return 22\n" * 100
    (rolling,) = puma.loglikelihood_rolling([request("loglikelihood_rolling", text)])
    per_token = rolling / len(puma.encoding.encode(text))
    uniform = -np.log(puma.saved.model.vocab_size)
    assert per_token == pytest.approx(uniform, rel=0.1), "of random weights"
