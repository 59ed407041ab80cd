"""Does a short last phase do what a whole run does? The study of results/last_phase.md.

    pip install transformers accelerate reasoning-gym
    python lab/last_phase.py                       # what of it is done, and its tables
    python lab/last_phase.py --run                 # first what is missing: twenty hours of a core
    python lab/last_phase.py --run --last=2000     # a longer last phase; so, too, --lr=1e-4
    python lab/last_phase.py --run --whole         # in place of it, whole runs from random weights

A model of 5 to 7 million parameters, in the shape of Qwen2 or of ModernBERT, is trained on random
masks. From these weights lab/hf.py goes on twice for each seed, with PUMA+ and with random masks.
An interruption leaves checkpoints: the same command goes on.
"""

import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
from transformers.convert_slow_tokenizer import TikTokenConverter

from configurator import configure
from data import rows as texts
from data.gym import prepare
from data.wordproblems.generate import make_problems
from lab import hf, study, thirty

out = "out/last_phase"
run = False  # train what is missing; else only the tables
last = 500  # of the last phase
lr = 5e-4  # of the last phase
whole = False  # in its place, as many updates as both phases; chains from update 200
jobs = 2  # at a time, on a core each
if __name__ == "__main__":
    configure(globals())

TASKS = {  # tokens of a row, and of a stage
    "words": (176, 16),
    "mini_sudoku": (64, 8),
    "binary_matrix": (104, 12),
}
SEEDS = {"qwen2": 8, "modernbert": 4}
ARMS = ["puma_plus", "mdm"]
UPDATES = 3000  # on random masks, before the last phase
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
        pairs = [(t, f, s) for s in range(1, 9) for t, f in studies if s <= SEEDS[f]]
        missing = [pair for pair in pairs if not all(map(study.records, arms_of(*pair)))]
        models = [] if whole else dict.fromkeys(pair[:2] for pair in missing)
        study.side_by_side(learn, models, jobs)
        study.side_by_side(phases, missing, jobs)
    for task, family in studies:
        table(task, family)


def folder(task, family):
    return Path(out, f"{task}_{family}")


def arms_folder(task, family):
    name = f"whole_{UPDATES + last}" if whole else f"{last}"
    return folder(task, family) / f"{name}_at_{lr:g}"


def arms_of(task, family, seed):
    return [arms_folder(task, family) / f"{arm}_{seed}" for arm in ARMS]


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
        ranks.write_bytes(texts.tokenizer("bytes").content)
    fast = TikTokenConverter(str(ranks), texts.PATTERN).converted()
    special = {"eos_token": texts.END, "mask_token": texts.MASK}
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
    net.save_pretrained(where)


# -- runs ------------------------------------------------------------------------------------------
def learn(task, family):
    """The training on random masks that all last phases of a model go on from."""
    where = folder(task, family)
    if study.records(where / "fine_tuned_1"):
        if (where / "fine_tuned_1/model.safetensors").exists():
            return
        raise SystemExit(f"{where} has records of weights that are not there: choose another --out")
    print(f"{task}, {family}: {UPDATES} updates", flush=True)
    flags = [f"--max_iters={UPDATES}", "--lr=5e-4", "--method=mdm"]
    train(task, where / "start", where / "fine_tuned_1", 1, flags)


def phases(task, family, seed):
    """Both arms of a seed."""
    print(f"{task}, {family}, seed {seed}", flush=True)
    begin = folder(task, family) / ("start" if whole else "fine_tuned_1")
    flags = [f"--lr={lr}", f"--max_iters={UPDATES + last if whole else last}"]
    flags += ["--chains_from=200"] if whole else []
    for arm, where in zip(ARMS, arms_of(task, family, seed), strict=True):
        train(task, begin, where, seed, [*flags, f"--method={arm}"])
        for checkpoint in where.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)


def train(task, model, where, seed, flags):
    length, K = TASKS[task]
    flags += [f"--model={model}", f"--data={out}/{task}.jsonl", f"--out_dir={where}"]
    flags += [f"--seed={seed}", f"--length={length}", f"--K={K}", f"--held_out={HELD_OUT}"]
    where.parent.mkdir(exist_ok=True)
    thirty.call(["lab/hf.py", "--bf16=False", "--batch_size=16", *flags], f"{where}.log")


def table(task, family):
    where = arms_folder(task, family)
    if not any(study.records(arm) for arm in where.glob("*_*")):
        print(f"{task}, {family}: not yet trained")
        return
    shares = study.records(folder(task, family) / "fine_tuned_1").items()
    shares = ", ".join(f"{sampler} {100 * share:.1f}" for sampler, share in shares)
    print(f"\n== {task}, {family}, {where.name}; {UPDATES} updates of random masks: {shares}")
    study.out = where
    study.arms = {"puma_plus": "", "mdm": ""}
    study.samplers = hf.samplers
    study.table([(arm, seed) for seed in range(1, SEEDS[family] + 1) for arm in study.arms])


if __name__ == "__main__":
    study.begin(main)
