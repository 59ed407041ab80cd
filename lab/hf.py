"""PUMA for a model of transformers that you already have (pip install transformers accelerate).

    python lab/hf.py --model=FOLDER --data=FILE.jsonl --out=out/mine
    python lab/hf.py --model=FOLDER --data=FILE.jsonl --out=out/mine --lora=16    # needs peft, too

It fine-tunes on random masks, goes on from these weights for a last phase, with PUMA+ and with
random masks, and says what share of the held-out answers each gets right at 1, 2, 4, 8 tokens a
step. Row i of a masked model (ModernBERT, BERT) scores token i. A model that predicts the
next token (Qwen2, Qwen3, Llama) is made to see both sides, and its row i - 1 goes on scoring token
i, as in Dream. In a program of yours, PumaTrainer is a transformers.Trainer:

    args = TrainingArguments("out", max_steps=500, per_device_train_batch_size=32)
    PumaTrainer(net, args, rows, mask_token=4, shift=False, method="puma_plus").train()

rows[indices] -> x0 (n, L), prompt (n, L) bool. A row is `prompt | answer, end, end, ...`. The
prompt is given: never masked, no part of a chain or the loss. The ends that fill a row are
predicted like other tokens, so that a model learns where its answers stop, and they are seen: there
is no attention mask. Ends cost steps, so rows should be little longer than the longest answer.
"""

import collections
import functools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
from torch.utils.data import DataLoader, TensorDataset

import checkpoint
import policies
import puma
import sample
from configurator import configure, pick
from data import files
from data import rows as texts
from lab import evaluate
from loss import objective

model = ""  # a folder, or a name on the hub
data = ""  # FILE.jsonl
prompt = "question"  # field of the prompts
answer = "answer"  # field of the answers
length = 256  # tokens of a row; longer ones are dropped
held_out = 200  # rows, the last of the file
out = "out/hf"
updates = 1000  # of fine-tuning; 0 = the model is fine-tuned already
last = 500  # of the last phase
chains_from = 0  # of the last phase, update that its chains begin at
arms = ["fine_tuned", "puma_plus", "mdm"]  # to measure: as it was, after a last phase of either
batch_size = 32  # rows of an update, on each device
grad_accum = 1  # forward passes an update
lr = 1e-4
K = 8  # tokens of a stage
tau = 0.9
lora = 0  # rank; 0 = all weights are trained
bf16 = torch.cuda.is_available()  # for matrix products
seed = 1
samplers = [(1, 1.0), (2, 1.0), (4, 1.0), (8, 1.0), (1, 0.9)]  # tokens a step, or all above tau


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

    Chains begin with the first update; those of "puma_plus" at chains_from. A checkpoint has the
    chains of each process, so a resumed run goes on as if it had never stopped. library: more
    arguments of Trainer.
    """

    def __init__(self, net, args, rows, mask_token, shift=False, method="puma", K=8, tau=0.9,
                 policy="top_k", buffer=None, chains_from=0, **library):  # fmt: skip
        args.ddp_find_unused_parameters = False  # the head is used outside of net's forward
        super().__init__(net, args, **library)
        self.loss_is_scaled_for_ga = False  # a mean over the rows of a forward pass
        self.rows = rows
        self.mask_token = mask_token
        self.shift = shift
        self.policy = policies.POLICIES[policy]
        passes = args.gradient_accumulation_steps
        self.make_streams = functools.partial(
            puma.make_streams, method=method, k_schedule=[(0, K)], tau=tau, buffer=buffer,
            chains_from=chains_from, batch_size=args.train_batch_size * passes, grad_accum=passes,
        )  # fmt: skip

    def get_train_dataloader(self):
        """Begin the streams. What Trainer itself reads are numbers: rows come from the streams."""
        args = self.args
        self.draw(0)
        queue = puma.Queue(self.rows, args.train_batch_size, args.device, args.seed,
                           args.process_index, args.world_size)  # fmt: skip
        masks, chains, self.begin = self.make_streams(self, queue)
        self.streams = {"queue": queue, "masks": masks} | ({"chains": chains} if chains else {})
        passes = args.max_steps * args.gradient_accumulation_steps
        return DataLoader(TensorDataset(torch.arange(passes)))

    def draw(self, number):
        """All randomness of a forward pass is a function of its number in the run, from 1."""
        puma.draw_from(self.args.seed, self.args.process_index, number)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        update = self.state.global_step
        self.draw(1 + int(inputs[0]))
        stream = self.streams["chains" if update >= self.begin else "masks"]
        batch = stream.batch(update)
        scored = Scored(model, self.mask_token, self.shift)
        with self.accelerator.autocast():  # the head, too
            loss, *seen = objective(scored, self.policy, *batch)
        stream.advance(*seen)
        return loss

    # -- chains in checkpoints
    @property
    def kept(self):
        return f"chains_{self.args.process_index}_of_{self.args.world_size}.pt"

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        states = {name: stream.state_dict() for name, stream in self.streams.items()}
        with checkpoint.opened(output_dir, self.kept, "wb") as file:
            torch.save(states, file)

    def _load_rng_state(self, checkpoint):
        super()._load_rng_state(checkpoint)
        if checkpoint:
            path = Path(checkpoint, self.kept)
            if not path.exists():
                raise SystemExit(f"{path} is missing: the run had another number of processes")
            for name, state in torch.load(path, weights_only=True).items():
                self.streams[name].load_state_dict(state)


def load(name, dtype=torch.float32):
    """A model that sees both sides, and whether its row i - 1 scores token i. Dream is a Qwen2."""
    if int(transformers.__version__.split(".")[0]) < 5:
        raise SystemExit("transformers before 5 ignores is_causal: pip install 'transformers>=5'")
    kept, _ = transformers.PreTrainedConfig.get_config_dict(name)
    if kept.get("model_type") == "Dream":  # the library has no class of this name
        config = transformers.Qwen2Config.from_dict(kept | {"model_type": "qwen2"})
    else:
        config = transformers.AutoConfig.from_pretrained(name)
    shift = "Masked" not in str(config.architectures)
    if shift:
        config.is_causal = False
    kind = transformers.AutoModelForCausalLM if shift else transformers.AutoModelForMaskedLM
    net, seen = kind.from_pretrained(name, config=config, dtype=dtype, output_loading_info=True)
    if seen["missing_keys"]:  # the library has drawn them at random
        raise SystemExit(f"{name} lacks {min(seen['missing_keys'])} of a {type(net).__name__}")
    return net, shift


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


def read(tokenizer, end):
    """Rows to train on, rows held out: pairs of x0 (N, L) and prompt (N, L)."""

    def encode(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    coder = SimpleNamespace(encode=encode, decode_text=tokenizer.decode)
    pairs = [tuple(row.values()) for row in texts.load(data, [prompt, answer])]
    texts.say_what_is_lost(coder, pairs[: texts.FIRST])
    read, reasons = [], collections.Counter()
    for pair in pairs:
        has_mask = any(tokenizer.mask_token in str(text) for text in pair)
        ids = texts.encode(coder, "has_mask" if has_mask else pair, texts.plain, length)
        if isinstance(ids, str):
            reasons[ids] += 1
        else:
            read.append(ids)
    count = len(read)
    dropped = ", ".join(f"{n} {why}" for why, n in reasons.items())
    about = f"{count} of {len(pairs)} rows can be used, dropped: {dropped or 'none'}"
    say(f"{about}; held out: {held_out}")
    if not 1 <= held_out < count:
        raise ValueError(f"{about}: held_out={held_out} leaves none of either")
    prompts = torch.tensor([len(ids) for ids, _ in read])
    ids = [torch.tensor(given + rest) for given, rest in read]
    x0 = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=end)
    x0 = torch.nn.functional.pad(x0, (0, length - x0.shape[1]), value=end)
    given = torch.arange(length) < prompts[:, None]
    rows = TensorDataset(x0, given)
    return TensorDataset(*rows[:-held_out]), rows[-held_out:]


def train(net, tokenizer, rows, name, method, steps, how):
    """A phase, from the weights of net on; an interrupted one goes on from its checkpoint."""
    folder = Path(out, f"{name}_{seed}")
    args = transformers.TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=batch_size // grad_accum,
        gradient_accumulation_steps=grad_accum, learning_rate=lr, lr_scheduler_type="cosine",
        warmup_steps=min(100, steps // 10), logging_steps=20, save_steps=200, save_total_limit=1,
        seed=seed, bf16=bf16, use_cpu=not torch.cuda.is_available(),
        report_to="none", max_grad_norm=1.0,
    )  # fmt: skip
    how = how | {"K": K, "tau": tau, "chains_from": chains_from}
    trainer = PumaTrainer(net, args, rows, method=method, processing_class=tokenizer, **how)
    if steps:
        found = transformers.trainer_utils.get_last_checkpoint(folder) if folder.exists() else None
        trainer.train(resume_from_checkpoint=found)
        trainer.save_model()


def judged(net, rows, end, tokens, tau, how):
    """A record as lab/evaluate.py has it; solved: right to the token, up to the answer's end."""
    scored = Scored(net.eval(), **how)
    batches = []
    for x0, given in zip(*(part.split(batch_size) for part in rows), strict=True):
        x, steps = evaluate.fill(scored, sample.generate, x0, given, policies.top_k, tokens, tau)
        own = evaluate.score(x, x0.numpy(), given.numpy(), end)
        batches.append({"solved": own["right"] == 1, **own, "steps": steps.cpu().numpy()})
    return {name: each.mean().item() for name, each in evaluate.joined(batches).items()}


def keep(settings):
    """Settings beside their runs; to others, what is kept there would pass for their own."""
    path = Path(out, f"settings_{seed}.json")
    settings = {k: v for k, v in settings.items() if k not in ("arms", "out", "samplers")}
    made = json.loads(path.read_text()) if path.exists() else settings
    if other := [key for key, value in settings.items() if made.get(key) != value]:
        raise ValueError(f"{out} was made with another {', '.join(other)}: choose another --out")
    files.write_json(path, settings)


def start():
    """The model and its tokenizer, end, how to read it, the rows to train on, those held out."""
    if not (model and data):
        raise ValueError("expected --model=FOLDER and --data=FILE.jsonl; --help lists all settings")
    if K < 1 or batch_size % grad_accum:
        raise ValueError(f"{K=} is below 1, or {batch_size=} does not split into {grad_accum=}")
    if chains_from and not 0 < chains_from < last:
        raise ValueError(f"{chains_from=}: expected an update of the last phase, of {last=}")
    net, shift = load(model, "auto" if lora else torch.float32)  # bfloat16 loses small updates
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    if tokenizer.mask_token is None:
        tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
        net.resize_token_embeddings(max(len(tokenizer), net.config.vocab_size))
    end = tokenizer.eos_token_id if tokenizer.sep_token is None else tokenizer.sep_token_id
    if end is None:
        raise ValueError(f"{model}: its tokenizer has no token for the end of a text")
    how = {"mask_token": tokenizer.mask_token_id, "shift": shift}
    check(net, **how)
    if lora:
        import peft

        wanted = peft.LoraConfig(r=lora, lora_alpha=lora, target_modules="all-linear")
        net = peft.get_peft_model(net, wanted)
    return net, tokenizer, end, how, *read(tokenizer, end)


def main(net, tokenizer, end, how, rows, test):
    train(net, tokenizer, rows, "fine_tuned", "mdm", updates, how)
    tuned = {name: p.data.clone() for name, p in net.named_parameters() if p.requires_grad}
    columns = [f"{n} a step" if tau == 1 else f"> {tau}" for n, tau in samplers]
    say(f"{'% right':14}" + "".join(f"{name:>10}" for name in columns))
    for arm in arms:
        net.load_state_dict(tuned, strict=False)
        if arm != "fine_tuned":
            train(net, tokenizer, rows, arm, arm, last, how)
        kept = {str(sampler): judged(net, test, end, *sampler, how) for sampler in samplers}
        shares = [record["solved"] for record in kept.values()]
        say(f"{arm:14}" + "".join(f"{100 * share:10.1f}" for share in shares), flush=True)
        files.write_json(Path(out, f"{arm}_{seed}", "eval.json"), kept)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    settings = configure(globals())
    try:
        for arm in arms:
            pick("arms", arm, ("fine_tuned", "puma_plus", "mdm"))
        parts = start()
        keep(settings)
    except (ImportError, OSError, ValueError) as error:  # no such package, model, file or field
        raise SystemExit(" ".join(str(error).split())[:300]) from None
    main(*parts)
