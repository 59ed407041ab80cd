"""The models that lab/last_phase.py goes on from: random ones, and what random masks make of them.

    pip install transformers accelerate reasoning-gym
    python lab/small_models.py --task=words --family=qwen2

OUT/TASK.jsonl has the rows, OUT/TASK_FAMILY/start a model of 5 to 7 million parameters in the shape
of Qwen2 or of ModernBERT, and fine_tuned_1 its weights after 3,000 updates on random masks.
"""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
from transformers.convert_slow_tokenizer import TikTokenConverter

from configurator import configure, pick
from data import tokenizer
from data.gym import prepare
from data.wordproblems.generate import make_problems

task = "words"  # word problems; or mini_sudoku, binary_matrix of data/gym
family = "qwen2"  # qwen2, modernbert
length = 176  # tokens of a row
K = 16  # of a stage
out = "out/last_phase"
SIZES = {"mini_sudoku": [], "binary_matrix": ["--min_n=4", "--max_n=5"]}  # of data/gym
ROWS = 30_000  # to train on; 200 more are held out


def write_rows():
    """Questions and answers, no question twice; the last 200 are held out."""
    path = Path(out, f"{task}.jsonl")
    if path.exists():
        return
    if task == "words":
        problems = [*make_problems(ROWS, "train"), *make_problems(200, "test")]
        rows = {problem.question: problem.code for problem in problems}
    else:
        folder = Path("data/gym", task)
        if not folder.exists():
            make = "data/gym/prepare.py", task, *SIZES[task]
            subprocess.run([sys.executable, *make], check=True)
        about = json.loads((folder / "header.json").read_text())["source"]
        made = prepare.said(folder / "rows.jsonl")
        rows = {prepare.trimmed(row["question"], about): row["answer"] for row in made}
    lines = [json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def write_model(where):
    """A random model and its tokenizer, as files of transformers."""
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
        net = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**size, **grouped))
    else:
        kind = {"intermediate_size": 512, "global_attn_every_n_layers": 1}
        net = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**size, **kind))
    coder.save_pretrained(where)
    net.save_pretrained(where)


def fine_tune(where):
    """3,000 updates on random masks; an interrupted run goes on from its checkpoint."""
    command = ["lab/hf.py", "--bf16=False", f"--model={where}/start", f"--data={out}/{task}.jsonl"]
    command += [f"--out={where}/learning", "--updates=3000", "--lr=5e-4", "--arms=['fine_tuned']"]
    command += [f"--length={length}", f"--K={K}", "--batch_size=16", "--held_out=200"]
    subprocess.run([sys.executable, *command], check=True)
    (where / "learning" / "fine_tuned_1").rename(where / "fine_tuned_1")


def main():
    pick("family", family, ("qwen2", "modernbert"))
    pick("task", task, ("words", *SIZES))
    where = Path(out, f"{task}_{family}")
    write_rows()
    if not (where / "start" / "model.safetensors").exists():
        write_model(where / "start")
    if not (where / "fine_tuned_1").exists():
        fine_tune(where)


if __name__ == "__main__":
    configure(globals())
    main()
