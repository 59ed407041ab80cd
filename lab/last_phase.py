"""Does a short last phase do what a whole run does? The study of results/last_phase.md.

    pip install transformers accelerate reasoning-gym
    python lab/last_phase.py                       # what of it is done, and its tables
    python lab/last_phase.py --run                 # first what is missing: twenty hours of a core

A model of 5 million parameters, in the shape of Qwen2 or of ModernBERT, is trained on random masks.
From these weights lab/hf.py goes on twice for each seed, with PUMA+ and with random masks. An
interruption leaves checkpoints: the same command goes on.
"""

import json
import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
from transformers.convert_slow_tokenizer import TikTokenConverter

from configurator import configure
from data import tokenizer
from data.gym import prepare
from data.wordproblems.generate import make_problems
from lab import hf, study, thirty

out = "out/last_phase"
run = False  # train what is missing; else only the tables
updates = 3000  # on random masks, before the last phase
last = 500  # of the last phase
jobs = 2  # at a time, on a core each
if __name__ == "__main__":
    configure(globals())

TASKS = {  # tokens of a row, and of a stage
    "words": (176, 16),
    "mini_sudoku": (64, 8),
    "binary_matrix": (104, 12),
}
SEEDS = {"qwen2": 8, "modernbert": 4}
ROWS = 30_000  # to train on, and held out:
HELD_OUT = 200


def main():
    transformers.logging.set_verbosity_error()
    studies = [(task, family) for task in TASKS for family in SEEDS]
    if run:
        for task in TASKS:
            write_rows(task)
        for pair in studies:
            write_model(*pair)
        study.side_by_side(phases, [(*pair, 1) for pair in studies], jobs)
        rest = [(t, f, s) for s in range(2, 9) for t, f in studies if s <= SEEDS[f]]
        study.side_by_side(phases, rest, jobs)
    for task, family in studies:
        table(task, family)


def folder(task, family):
    return Path(out, f"{task}_{family}")


# -- data and models -------------------------------------------------------------------------------
def write_rows(task):
    """Questions and answers, no question twice; the last HELD_OUT are held out."""
    path = Path(out, f"{task}.jsonl")
    if path.exists():
        return
    print(f"{task}: its rows", flush=True)
    if task == "words":
        problems = [*make_problems(ROWS, "train"), *make_problems(HELD_OUT, "test")]
        rows = {problem.question: problem.code for problem in problems}
    else:
        thirty.prepare(task)
        about = json.loads(Path("data/gym", task, "header.json").read_text())["source"]
        made = prepare.said(Path("data/gym", task, "rows.jsonl"))
        rows = {prepare.trimmed(row["question"], about): row["answer"] for row in made}
    lines = [json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def write_model(task, family):
    """A random model and its tokenizer, as files of transformers."""
    where = folder(task, family) / "start"
    if (where / "model.safetensors").exists():
        return
    ranks = Path("data/wordproblems/vocabulary.tiktoken")
    if task != "words":
        ranks = Path(out, "bytes.tiktoken")
        ranks.write_bytes(tokenizer.to_text({byte: i for i, byte in enumerate(tokenizer.BYTES)}))
    fast = TikTokenConverter(str(ranks), tokenizer.PATTERN).converted()
    special = {"eos_token": tokenizer.END, "mask_token": tokenizer.MASK}
    coder = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, **special)
    size = {"vocab_size": len(coder), "hidden_size": 256, "num_hidden_layers": 8}
    size |= {"num_attention_heads": 4, "max_position_embeddings": 256}
    size |= {f"{name}_token_id": coder.eos_token_id for name in ("pad", "bos", "eos", "cls", "sep")}
    torch.manual_seed(1)
    if family == "qwen2":
        grouped = {"num_key_value_heads": 2, "intermediate_size": 704}
        config = transformers.Qwen2Config(**size, **grouped)
        net = transformers.Qwen2ForCausalLM(config)
    else:
        kind = {"intermediate_size": 512, "global_attn_every_n_layers": 1}
        config = transformers.ModernBertConfig(**size, **kind)
        net = transformers.ModernBertForMaskedLM(config)
    print(f"{where}: {sum(p.numel() for p in net.parameters()):,} parameters", flush=True)
    coder.save_pretrained(where)
    coder.save_pretrained(where.with_name("fine_tuned_1"))  # where lab/hf.py puts the weights alone
    net.save_pretrained(where)


# -- runs ------------------------------------------------------------------------------------------
def phases(task, family, seed):
    """Both arms of a seed; with seed 1 first the training on random masks that all begin with."""
    where = folder(task, family)
    arms = [where / f"{arm}_{seed}" for arm in ("puma_plus", "mdm")]
    if all((arm / "eval.json").exists() for arm in arms):
        return
    print(f"{task}, {family}, seed {seed}", flush=True)
    length, K = TASKS[task]
    begin, before, measured = "fine_tuned_1", 0, hf.arms[1:]
    if seed == 1:
        begin, before, measured = "start", updates, hf.arms
    flags = [f"--model={where / begin}", f"--data={out}/{task}.jsonl", f"--out={where}"]
    flags += [f"--length={length}", f"--K={K}", f"--held_out={HELD_OUT}", f"--seed={seed}"]
    flags += [f"--updates={before}", f"--last={last}", "--batch_size=16", "--lr=5e-4"]
    flags += [f"--arms={measured}"]
    thirty.call(["lab/hf.py", *flags], f"{where}/{seed}.log")
    for arm in arms:
        for checkpoint in arm.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)


def table(task, family):
    kept = study.records(folder(task, family) / "fine_tuned_1")
    if not kept:
        print(f"{task}, {family}: not yet trained")
        return
    shares = ", ".join(f"{sampler} {100 * share:.1f}" for sampler, share in kept.items())
    print(f"\n== {task}, {family}; before the last phase, {updates} updates: {shares}")
    study.out = folder(task, family)
    study.arms = {"puma_plus": "", "mdm": ""}
    study.samplers = hf.samplers
    study.table([(arm, seed) for seed in range(1, SEEDS[family] + 1) for arm in study.arms])


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("stopped: the same command goes on") from None
