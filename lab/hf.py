"""PUMA for a model of transformers that you already have (pip install transformers accelerate).

    python lab/hf.py --model=FOLDER --data=FILE.jsonl --K=8 --out_dir=out/mine
    torchrun --nproc_per_node=8 lab/hf.py config/dream_coder.py      # LoRA; needs peft, too

It trains, and says what share of the held-out answers is exactly right at 1, 2, 4, 8 tokens a step.
The same command goes on after a stop; --model=out/mine begins with the weights of that run. Row i
of a masked model (ModernBERT, BERT) scores token i. A model that predicts the next token (Qwen2,
Qwen3, Llama) is made to see both sides, and its row i - 1 goes on scoring token i, as in Dream,
which is a Qwen2. In a program of yours, PumaTrainer is a transformers.Trainer:

    args = TrainingArguments("out", max_steps=500, per_device_train_batch_size=32)
    PumaTrainer(net, args, rows, mask_token=4, shift=False, method="puma_plus").train()

rows[indices] -> x0 (n, L), prompt (n, L) bool. A row is `prompt | answer, end, end, ...`. The
prompt is given: never masked, no part of a chain or the loss. The ends that fill a row are
predicted, too, so that a model learns where its answers stop; there is no attention mask. --data
are .jsonl or .parquet files with fields of text, with `messages` (--chat), or with `input_ids` and
`labels`, where -100 is given, also as a folder of `datasets`; or a folder of data/*/prepare.py.
"""

import collections
import json
import math
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import datasets
import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader, TensorDataset

import checkpoint
import policies
import puma
import sample
import text
from configurator import configure, pick
from data import files
from data import rows as texts
from lab import evaluate, likelihood
from loss import objective

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

ABOUT = "puma.json"  # beside the weights: how to read them
METHODS = "puma", "puma_plus", "mdm"
WORLD = int(os.environ.get("WORLD_SIZE", 1))


class Scored:
    """A model of transformers as loss.py and sample.py want one, whose row i scores token i.

    h = scored(x) (B, L, dim), what its output head takes; logits (n, vocab_size) of rows of h, for
    hidden positions alone. shift: the head's row i - 1 scores token i; token 0 has its own row.
    """

    def __init__(self, net, mask_token, shift):
        self.net = net
        self.mask_token = mask_token
        self.shift = shift
        self.head = getattr(net, "module", net).get_output_embeddings()
        weight, bias = self.head.weight, self.head.bias
        joined = weight if bias is None else torch.cat((weight, bias[:, None]), 1)
        self.lm_head = SimpleNamespace(weight=joined)  # a bias is one more column
        self.vocab_size = len(weight)

    def __call__(self, x):
        self.head.forward = lambda h: h  # all logits would not fit into memory
        try:
            h = self.net(input_ids=x).logits.to(self.head.weight.dtype)
        finally:
            del self.head.forward
        h = torch.cat((h[:, :1], h[:, :-1]), 1) if self.shift else h
        return h if self.head.bias is None else torch.cat((h, torch.ones_like(h[..., :1])), -1)

    def logits(self, h):
        logits = torch.nn.functional.linear(h, self.lm_head.weight).float()
        logits[..., self.mask_token] = -torch.inf
        return logits


class PumaTrainer(transformers.Trainer):
    """transformers.Trainer on random masks ("mdm") or on chains ("puma", "puma_plus").

    Chains begin with the first update; those of "puma_plus" at chains_from, None = once the model
    is sure of half of what random masks hide. A checkpoint has the chains of each process, so a
    resumed run goes on as if it had never stopped. eval_dataset, as rows, and end, the token that
    ends an answer (None: rows have none), are for `evaluate`. library: more arguments of Trainer.
    Raises ValueError.
    """

    def __init__(self, net, args, rows, mask_token, shift=False, method="puma", K=8, tau=0.9,
                 policy="top_k", buffer=None, chains_from=0, eval_dataset=None, end=None,
                 **library):  # fmt: skip
        if method not in METHODS:
            raise ValueError(f"{method=}: expected {', '.join(METHODS)}")
        if args.label_smoothing_factor or library.get("compute_metrics"):
            raise ValueError("label_smoothing_factor and compute_metrics are not used")
        for part in (rows,) if eval_dataset is None else (rows, eval_dataset):
            usable(part, mask_token, len(net.get_output_embeddings().weight))
        if args.max_steps < 1:
            batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            args.max_steps = math.ceil(args.num_train_epochs * len(rows) / batch)
        args.ddp_find_unused_parameters = False  # the head is used outside of net's forward
        super().__init__(net, args, eval_dataset=eval_dataset, **library)
        self.loss_is_scaled_for_ga = False  # a mean over the rows of a forward pass
        self.rows = rows
        self.mask_token = mask_token
        self.shift = shift
        self.policy = policies.POLICIES[policy]
        self.end = end
        self.K = K
        self.vocab_size = len(self.model.get_output_embeddings().weight)
        self.how = dict(method=method, k_schedule=[(0, K)], tau=tau, buffer=buffer,
                        chains_from=chains_from)  # fmt: skip

    def get_train_dataloader(self):
        """Begin the streams. What Trainer itself reads are numbers: rows come from the streams."""
        args = self.args
        self.draw(0)
        queue = puma.Queue(self.rows, args.train_batch_size, args.device, args.seed,
                           args.process_index, args.world_size)  # fmt: skip
        passes = args.gradient_accumulation_steps
        how = self.how | {"batch_size": args.train_batch_size * passes, "grad_accum": passes}
        masks, chains, self.begin = puma.make_streams(self, queue, **how)
        self.streams = {"queue": queue, "masks": masks} | ({"chains": chains} if chains else {})
        return DataLoader(TensorDataset(torch.arange(args.max_steps * passes)))

    def draw(self, number):
        """All randomness of a forward pass is a function of its number in the run, from 1."""
        puma.draw_from(self.args.seed, self.args.process_index, number)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        update = self.state.global_step
        number = int(inputs[0])  # of the forward pass
        self.draw(1 + number)
        if self.begin is None and number % (10 * self.args.gradient_accumulation_steps) == 0:
            sure = self.accelerator.reduce(self.streams["masks"].sure, "mean")
            self.begin = update if sure > 0.5 else None
        begun = self.begin is not None and update >= self.begin
        stream = self.streams["chains" if begun else "masks"]
        batch = stream.batch(update)
        scored = Scored(model, self.mask_token, self.shift)
        with self.accelerator.autocast():  # the head, too
            loss, *seen = objective(scored, self.policy, *batch)
        stream.advance(*seen)
        return loss

    @torch.no_grad()
    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """Of all rows, with random numbers that are the same each time; training does not see it.

        eval_loss: on random masks, one of each row. eval_chain_loss ("puma", "puma_plus"): mean of
        all states of a new chain of each row, begun as the paper's. eval_right: the share of rows
        whose answer, filled in K tokens a step, is right to the token, up to its end.
        """
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        usable(rows, self.mask_token, self.vocab_size)
        args = self.args
        was_training = self.model.training
        scored = Scored(self.model.eval(), self.mask_token, self.shift)
        sums = torch.zeros(5, device=args.device)
        step = args.eval_batch_size * args.world_size  # each process has every world-th batch
        for first in range(args.eval_batch_size * args.process_index, len(rows), step):
            puma.draw_from(first)
            at = np.arange(first, min(first + args.eval_batch_size, len(rows)))
            x0, prompt = (torch.as_tensor(part).to(args.device) for part in rows[at])
            with self.accelerator.autocast():
                sums += torch.tensor(self.measured(scored, x0.long(), prompt)).to(sums)
        self.model.train(was_training)
        count, right, loss, states, chain_loss = self.accelerator.reduce(sums, "sum").tolist()
        found = {"right": right / count, "loss": loss / count}
        found |= {"chain_loss": chain_loss / states} if states else {}
        found = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(found)
        self.control = self.callback_handler.on_evaluate(args, self.state, self.control, found)
        return found

    def measured(self, scored, x0, prompt):
        """Of rows (n, L): n, right answers, the sum of losses; states of chains, that of theirs."""
        x, _ = evaluate.fill(scored, sample.generate, x0, prompt, self.policy, self.K)
        right = evaluate.score(x, x0.cpu().numpy(), prompt.cpu().numpy(), self.end)["right"] == 1
        hidden = ~prompt
        effective = hidden.sum(1)
        loss = (likelihood.nelbo(scored, x0, prompt, masks=1).sum(1) / effective).sum()
        found = [len(x0), right.sum(), loss, 0, 0]
        stage = torch.zeros_like(effective)
        stages = puma.stage_count(x0.shape[1], self.K)
        while len(x0) and self.how["method"] != "mdm":
            x = x0.masked_fill(hidden, self.mask_token)
            loss, *seen = objective(scored, self.policy, x, x0, hidden)
            found[3] += len(x0)
            found[4] += len(x0) * loss
            r = puma.uniform(effective)
            chains = hidden, stage, effective, *seen, r, stages, self.how["tau"]
            hidden, stage, ended = puma.step(*chains)
            x0, hidden, stage, effective = (p[~ended] for p in (x0, hidden, stage, effective))
        return found

    # -- what checkpoints and trained folders have beside the weights
    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        x0, _ = self.rows[np.zeros(1, int)]
        about = {"mask_token": self.mask_token, "shift": self.shift, "length": x0.shape[1]}
        about["vocab_size"] = self.model.config.vocab_size
        files.write_json(Path(output_dir or self.args.output_dir, ABOUT), about)

    @property
    def kept(self):
        return f"chains_{self.args.process_index}_of_{self.args.world_size}.pt"

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        states = {name: stream.state_dict() for name, stream in self.streams.items()}
        states["begin"] = self.begin
        with checkpoint.opened(output_dir, self.kept, "wb") as file:
            torch.save(states, file)

    def _load_rng_state(self, checkpoint):
        super()._load_rng_state(checkpoint)
        if checkpoint:
            path = Path(checkpoint, self.kept)
            if not path.exists():
                raise SystemExit(f"{path} is missing: the run had another number of processes")
            states = torch.load(path, weights_only=True)
            self.begin = states.pop("begin")
            if states.keys() != self.streams.keys():
                raise SystemExit(f"{path} is of another method: it has {', '.join(states)}")
            for name, state in states.items():
                self.streams[name].load_state_dict(state)


def usable(rows, mask_token, vocab_size):
    """Raise ValueError for rows that cannot be trained on; the first thousand are looked at."""
    if not rows:
        raise ValueError(f"expected rows[indices] -> x0, prompt, not {rows!r:.99}")
    x0, prompt = (torch.as_tensor(part) for part in rows[np.arange(min(len(rows), 1000))])
    if prompt.all(1).any():
        raise ValueError("rows have one that is all prompt: nothing is left to predict")
    if (x0[~prompt] == mask_token).any():
        raise ValueError(f"rows have the mask token {mask_token} where it is to be predicted")
    if not 0 <= x0.min() <= x0.max() < vocab_size:
        raise ValueError(f"rows have tokens up to {x0.max()}, the model {vocab_size} of them")


def load(name, dtype="auto"):
    """A model that sees both sides, and whether its row i - 1 scores token i."""
    if int(transformers.__version__.split(".")[0]) < 5:
        raise SystemExit("transformers before 5 ignores is_causal: pip install 'transformers>=5'")
    if Path(name, "adapter_config.json").exists():
        return with_adapters(name)
    kept, _ = transformers.PreTrainedConfig.get_config_dict(name)
    if kept.get("model_type") == "Dream":  # the library has no class of this name
        config = transformers.Qwen2Config.from_dict(kept | {"model_type": "qwen2"})
    else:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    shift = "Masked" not in str(config.architectures)
    if shift:
        config.is_causal = False
    kind = transformers.AutoModelForCausalLM if shift else transformers.AutoModelForMaskedLM
    how = {"config": config, "dtype": dtype, "trust_remote_code": False}  # no code of others runs
    net, seen = kind.from_pretrained(name, output_loading_info=True, **how)
    if seen["missing_keys"]:  # the library has drawn them at random
        raise SystemExit(f"{name} lacks {min(seen['missing_keys'])} of a {type(net).__name__}")
    return net, shift


def with_adapters(folder):
    """The same of a folder of adapters that PumaTrainer has written."""
    import peft

    base = peft.PeftConfig.from_pretrained(folder).base_model_name_or_path
    net, shift = load(base)
    net.resize_token_embeddings(json.loads(Path(folder, ABOUT).read_text())["vocab_size"])
    return peft.PeftModel.from_pretrained(net, folder, is_trainable=True), shift


@torch.no_grad()
def check(net, mask_token, shift):
    """Raise ValueError where a model of the library does not do what Scored takes it to do."""
    x = torch.tensor([[1, 2, 3], [1, 2, 4]], device=net.device)
    scored = Scored(net.eval(), mask_token, shift)
    logits = scored.logits(scored(x))
    if torch.equal(logits[0, 1], logits[1, 1]):
        raise ValueError(f"{net.config.model_type}: its states do not see what follows")
    own = net(input_ids=x).logits.float()
    if shift:
        own, logits = own[:, :-1], logits[:, 1:]
    own[..., mask_token] = -torch.inf
    if not torch.allclose(logits, own, 1e-2, 1e-2):
        raise ValueError(f"{net.config.model_type}: its logits are not its head times its states")


# -- the command -----------------------------------------------------------------------------------
# of several processes, the first speaks
say = print if os.environ.get("RANK", "0") == "0" else lambda *text, **how: None


def coder_of(name):
    """The tokenizer of a model, and the same in the words of data/rows.py."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
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
    if chat and not tokenizer.chat_template:
        raise ValueError(f"--chat: the tokenizer of {model} has no chat template")
    if rows_of is by_text:
        if missing := {prompt, answer} - {*source.column_names}:
            raise ValueError(f"{data} has no field {min(missing)}, but {source.column_names}")
        if tokenizer.chat_template:
            say(f"{model} has a chat template, which --chat would use")
        source = source.select_columns([prompt, answer])
        first = source.select(range(min(texts.FIRST, len(source))))
        texts.say_what_is_lost(coder, [tuple(row.values()) for row in first])
    found = [rows_of(tokenizer, coder, row) for row in source]
    kept = [row for row in found if not isinstance(row, str)]
    dropped = collections.Counter(row for row in found if isinstance(row, str))
    dropped = ", ".join(f"{n} {why}" for why, n in dropped.items()) or "none"
    about = f"{len(kept)} of {len(found)} rows can be used, dropped: {dropped}"
    say(f"{about}; held out: {held_out}")
    if not 1 <= held_out < len(kept):
        raise ValueError(f"{about}: held_out={held_out} leaves none of either")
    x0 = torch.full((len(kept), length), coder.end)
    given = torch.zeros_like(x0, dtype=torch.bool)
    for row, (ids, is_given) in enumerate(kept):
        x0[row, : len(ids)] = torch.tensor(ids)
        given[row, : len(ids)] = torch.tensor(is_given)
    rows = TensorDataset(x0, given)
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
    return TokenFiles(), problem.mask_token, problem.end, problem.train, test


class TokenFiles:
    """In place of a tokenizer, what a folder of tokens has of it."""

    def save_pretrained(self, folder):
        for file in Path(data, "header.json"), *Path(data).glob("tokenizer.*"):
            shutil.copy(file, folder)


def start():
    """The model, what to keep beside it, end, how to read it, rows to train on, rows held out."""
    if not (model and data):
        raise ValueError("expected --model=FOLDER and --data=FILE.jsonl; --help lists all settings")
    pick("method", method, METHODS)
    if batch_size % (WORLD * grad_accum):
        raise ValueError(f"{batch_size=} does not split into {WORLD} processes, {grad_accum=}")
    if chains_from and not 0 < chains_from < max_iters:
        raise ValueError(f"{chains_from=}: expected an update before {max_iters=}")
    torch.manual_seed(seed)  # of adapters, and of a new mask token
    net, shift = load(model, "auto" if lora else torch.float32)  # bfloat16 loses small updates
    rows_of = of_tokens if Path(data, "header.json").exists() else of_texts
    beside, mask_token, end, *rows = rows_of(net)
    how = {"mask_token": mask_token, "shift": shift}
    check(net, **how)
    if lora and not hasattr(net, "peft_config"):
        import peft

        wanted = peft.LoraConfig(r=lora, lora_alpha=lora, target_modules="all-linear")
        net = peft.get_peft_model(net, wanted)
    return net, beside, end, how, *rows


def claim(settings):
    """Keep the settings beside the run; to others, what is there would pass for their own."""
    path = Path(out_dir, "settings.json")
    settings = {k: v for k, v in settings.items() if k not in ("out_dir", "samplers")}
    made = json.loads(path.read_text()) if path.exists() else settings
    if other := [key for key, value in settings.items() if made.get(key) != value]:
        raise ValueError(
            f"{out_dir} was made with another {', '.join(other)}: choose another --out_dir"
        )
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
    trainer = PumaTrainer(net, args, rows, **how, method=method, K=K, tau=tau,
                          chains_from=chains_from, processing_class=beside)  # fmt: skip
    if max_iters:
        stopped = transformers.trainer_utils.get_last_checkpoint(out_dir)
        trainer.train(resume_from_checkpoint=stopped)
        trainer.save_model()
    records = {}
    for tokens, above in samplers:
        record = judged(net, test, end, tokens, above, how)
        name = f"{tokens} a step" if above == 1 else f"above {above}"
        say(f"{name:12}{100 * record['solved']:6.1f} % right", flush=True)
        records[str((tokens, above))] = record
    files.write_json(Path(out_dir, "eval.json"), records)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    try:
        parts = start()
        claim(settings)
    except (ImportError, OSError, ValueError) as error:  # no such package, model, file or field
        raise SystemExit(" ".join(str(error).split())[:300]) from None
    try:
        main(*parts)
    except KeyboardInterrupt:
        raise SystemExit("stopped: the same command goes on from the last checkpoint") from None
