"""PUMA for a model of transformers that you already have (pip install transformers accelerate).

    python lab/hf.py --model=FOLDER --data=FILE.jsonl --K=8 --out_dir=out/mine
    torchrun --nproc_per_node=8 lab/hf.py config/dream_coder.py      # LoRA; needs peft, too

It trains, and says what share of the held-out answers is exactly right at 1, 2, 4, 8 tokens a step.
The same command goes on after a stop; --model=out/mine begins with the weights of that run. Row i
of a masked model (ModernBERT, BERT) scores token i. A model that predicts the next token (Qwen2,
Qwen3, Llama) is made to see both sides, and its row i - 1 goes on scoring token i, as in Dream,
which is a Qwen2. A program of yours imports lab/trainer.py. --data are .jsonl or .parquet files
with fields of text, with `messages` (--chat), or with `input_ids` and `labels`, where -100 is
given, also as a folder of `datasets`; or a folder of data/*/prepare.py.
"""

import collections
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import datasets
import torch
import transformers
from torch.utils.data import TensorDataset

import checkpoint
import policies
import sample
import text
from configurator import configure, pick
from data import files
from data import rows as texts
from lab import evaluate
from lab.trainer import PumaTrainer, Scored, check, load

model = ""  # a folder, or a name on the hub
data = ""  # see above
prompt = "question"  # field of the prompts
answer = "answer"  # field of the answers
chat = False  # both, or `messages`, by the chat template of the model
length = 256  # 2.. tokens of a row; longer ones are dropped
held_out = 200  # 1.. rows to measure with
out_dir = "out/hf"
method = "puma_plus"  # what to train on: puma, puma_plus, mdm (random masks)
K = 8  # 1.. tokens of a stage
tau = 0.9  # 0..1
chains_from = 0  # 0.. puma_plus alone: update of the first chains
lora = 0  # 0.. rank of new adapters; 0 = all weights are trained
batch_size = 32  # 1.. rows per update, over all processes
grad_accum = 1  # 1.. forward passes per update
max_iters = 1000  # 0.. 0 = only measure
lr = 1e-4  # 0..
warmup = 0  # 0.. updates in which lr rises; 0 = a tenth of all, at most 100
weight_decay = 0.0
bf16 = torch.cuda.is_available()  # for matrix products
save_interval = 200  # 1..
keep = False  # all checkpoints; else the last
seed = 1  # 0..
samplers = [(1, 1.0), (2, 1.0), (4, 1.0), (8, 1.0), (1, 0.9)]  # tokens a step, or all above tau
if __name__ == "__main__":
    settings = configure(globals())

WORLD = int(os.environ.get("WORLD_SIZE", 1))
is_first = os.environ.get("RANK", "0") == "0"  # of several processes
say = print if is_first else lambda *text, **how: None


def coder_of(name):
    """The tokenizer of a model, and the same in the words of data/rows.py."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # made up by the library
        raise ValueError(f"{name} has no tokenizer")
    if tokenizer.mask_token is None:
        tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    end = tokenizer.eos_token_id if tokenizer.sep_token is None else tokenizer.sep_token_id
    if end is None:
        raise ValueError(f"{name}: its tokenizer has no token for the end of a text")
    special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    return tokenizer, SimpleNamespace(
        end=end, special=special, decode=tokenizer.decode, decode_text=tokenizer.decode,
        encode=lambda text: tokenizer(text, add_special_tokens=False).input_ids,
    )  # fmt: skip


def of_texts(net):
    """What to keep beside the model, mask, end, rows to train on, rows held out."""
    tokenizer, coder = coder_of(model)
    if len(tokenizer) > net.config.vocab_size:  # by the mask token
        net.resize_token_embeddings(len(tokenizer))
    return tokenizer, tokenizer.mask_token_id, coder.end, *read(tokenizer, coder)


def read(tokenizer, coder):
    """Rows to train on, rows held out: x0 (N, L) and prompt (N, L) of each."""
    is_saved = Path(data, "state.json").exists()
    source = datasets.load_from_disk(data) if is_saved else texts.load(data)
    rows_of = by_labels if "labels" in source.column_names else by_chat if chat else by_text
    if rows_of is by_text:
        if tokenizer.chat_template:
            say(f"{model} has a chat template, which --chat would use")
        source = source.select_columns([prompt, answer])
        texts.say_what_is_lost(coder, [*zip(*source[: texts.FIRST].values(), strict=True)])
    found = [rows_of(tokenizer, coder, row) for row in source]
    kept = [row for row in found if not isinstance(row, str)]
    dropped = collections.Counter(row for row in found if isinstance(row, str))
    dropped = ", ".join(f"{n} {why}" for why, n in dropped.items()) or "none"
    about = f"{len(kept)} of {len(found)} rows can be used, dropped: {dropped}"
    say(f"{about}; held out: {held_out}")
    if not 1 <= held_out < len(kept):
        raise ValueError(f"{about}: held_out={held_out} leaves none of either")
    x0 = [ids + [coder.end] * (length - len(ids)) for ids, _ in kept]
    given = [is_given + [False] * (length - len(is_given)) for _, is_given in kept]
    rows = TensorDataset(torch.tensor(x0), torch.tensor(given))
    return TensorDataset(*rows[:-held_out]), rows[-held_out:]


def by_text(tokenizer, coder, row):
    """The ids of a row, and of each whether it is given; or the word why the row is dropped."""
    pair = row[prompt], row[answer]
    if tokenizer.mask_token in "".join(map(str, pair)):
        return "has_mask"
    found = texts.encode(coder, pair, texts.plain, length)
    return found if isinstance(found, str) else joined(*found)


def by_chat(tokenizer, coder, row):
    """The same by the model's template: given is all up to the last turn, which is predicted."""
    user = {"role": "user", "content": row.get(prompt)}
    turns = row.get("messages") or [user, {"role": "assistant", "content": row.get(answer)}]
    if not all(isinstance(turn["content"], str) and turn["content"] for turn in turns):
        return "unusable"
    how = {"tokenize": True, "return_dict": False}
    given = tokenizer.apply_chat_template(turns[:-1], add_generation_prompt=True, **how)
    ids = tokenizer.apply_chat_template(turns, **how)
    if ids[: len(given)] != given or len(ids) == len(given):
        return "template"  # it writes the turns before otherwise once they are answered
    return joined(given, ids[len(given) :])


def by_labels(tokenizer, coder, row):
    given = [label == -100 for label in row["labels"]]
    if all(given) or len(given) != len(row["input_ids"]):
        return "unusable"
    return (row["input_ids"], given) if len(given) <= length else "too_long"


def joined(given, rest):
    is_given = [True] * len(given) + [False] * len(rest)
    return ([*given, *rest], is_given) if len(is_given) < length else "too_long"


def of_tokens(net):
    """The same of a folder of tokens, as text.py reads it."""
    problem = text.load(data, held_out)
    own_mask = getattr(net.config, "mask_token_id", None)  # Qwen2 has none
    if problem.vocab_size > net.config.vocab_size or own_mask not in (None, problem.mask_token):
        raise ValueError(f"{data} was not encoded for {model}: another vocabulary or mask token")
    test = [torch.as_tensor(part).long() for part in problem.test[:held_out]]

    def keep(folder):  # what a folder of tokens has of a tokenizer
        for file in Path(data, "header.json"), *Path(data).glob("tokenizer.*"):
            shutil.copy(file, folder)

    beside = SimpleNamespace(save_pretrained=keep)
    return beside, problem.mask_token, problem.end, problem.train, test


def start():
    """The model, what to keep beside it, end, how to read it, rows to train on, rows held out."""
    if not (model and data):
        raise ValueError("expected --model=FOLDER and --data=FILE.jsonl; --help lists all settings")
    pick("method", method, PumaTrainer.METHODS)
    if batch_size % (WORLD * grad_accum):
        raise ValueError(f"{batch_size=} does not split into {WORLD} processes, {grad_accum=}")
    if chains_from and not 0 < chains_from < max_iters:
        raise ValueError(f"{chains_from=}: expected an update before {max_iters=}")
    if length <= K:
        raise ValueError(f"{K=}: expected fewer tokens than the {length=} of a row")
    torch.manual_seed(seed)  # of adapters, and of a new mask token
    net, shift = load(model, "auto" if lora else torch.float32)  # bfloat16 loses small updates
    most = getattr(net.config, "max_position_embeddings", length)
    if length > most:
        raise ValueError(f"{length=}: {model} has positions for {most} tokens")
    rows_of = of_tokens if Path(data, "header.json").exists() else of_texts
    beside, mask_token, end, *rows = rows_of(net)
    how = {"mask_token": mask_token, "shift": shift}
    check(net, mask_token)
    if lora and not hasattr(net, "peft_config"):
        import peft

        wanted = peft.LoraConfig(r=lora, lora_alpha=lora, target_modules="all-linear")
        net = peft.get_peft_model(net, wanted)
    return net, beside, end, how, *rows


def claim(settings):
    """Keep the settings beside the run; to others, what is there would pass for their own."""
    path = Path(out_dir, "settings.json")
    settings = {k: v for k, v in settings.items() if k not in ("out_dir", "samplers")}
    made = dict(json.loads(path.read_text())) if path.exists() else settings
    if other := [key for key, value in settings.items() if made.get(key, value) != value]:
        raise ValueError(f"{out_dir} was made with another {', '.join(other)}: choose another")
    files.write_json(path, settings)


def judged(net, rows, end, tokens, tau, how):
    """A record as lab/evaluate.py has it; solved: right to the token, up to the answer's end."""
    scored = Scored(net.eval(), **how)
    batches = []
    for x0, given in zip(*(part.split(batch_size // grad_accum) for part in rows), strict=True):
        x, steps = evaluate.fill(scored, sample.generate, x0, given, policies.top_k, tokens, tau)
        own = evaluate.score(x, x0.numpy(), given.numpy(), end)
        batches.append({"solved": own["right"] == 1, **own, "steps": steps.cpu().numpy()})
    return {name: each.mean().item() for name, each in evaluate.joined(batches).items()}


def main(net, beside, end, how, rows, test):
    args = transformers.TrainingArguments(
        out_dir, max_steps=max_iters, gradient_accumulation_steps=grad_accum,
        per_device_train_batch_size=batch_size // WORLD // grad_accum,
        learning_rate=lr, lr_scheduler_type="cosine", weight_decay=weight_decay, max_grad_norm=1.0,
        warmup_steps=warmup or min(100, max_iters // 10), seed=seed, bf16=bf16,
        gradient_checkpointing=bool(lora), gradient_checkpointing_kwargs={"use_reentrant": False},
        save_steps=save_interval, save_total_limit=None if keep else 1, logging_steps=20,
        use_cpu=not torch.cuda.is_available(), report_to="none",
    )  # fmt: skip
    run = PumaTrainer(net, args, rows, **how, method=method, K=K, tau=tau,
                      chains_from=chains_from, processing_class=beside)  # fmt: skip
    if max_iters:
        run.train(resume_from_checkpoint=transformers.trainer_utils.get_last_checkpoint(out_dir))
        run.save_model()
    records = {}
    for tokens, above in samplers:
        records[str((tokens, above))] = record = judged(net, test, end, tokens, above, how)
        name = f"{tokens} a step" if above == 1 else f"above {above}"
        say(f"{name:12}{100 * record['solved']:6.1f} % right", flush=True)
    files.write_json(Path(out_dir, "eval.json"), records)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    try:
        parts = start()
        held = checkpoint.claimed(out_dir, "lock") if is_first else None  # as long as this runs
        claim(settings | {"content of the data": checkpoint.fingerprint(parts[4])})
    except (ImportError, OSError, TypeError, ValueError) as error:  # no such package, file, field
        raise SystemExit(" ".join(str(error).split())[:300]) from None
    try:
        main(*parts)
    except KeyboardInterrupt:
        raise SystemExit("stopped: the same command goes on from the last checkpoint") from None
