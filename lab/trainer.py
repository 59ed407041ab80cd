"""PUMA as a transformers.Trainer, for a program of yours; lab/hf.py is the command.

    args = TrainingArguments("out", max_steps=500, per_device_train_batch_size=32)
    net, shift = load("FOLDER")
    PumaTrainer(net, args, rows, mask_token=4, shift=shift, method="puma_plus").train()

rows[indices] -> x0 (n, L), prompt (n, L) bool. A row is `prompt | answer, end, end, ...`. The
prompt is given: never masked, no part of a chain or the loss. The ends that fill a row are
predicted, too, so that a model learns where its answers stop; there is no attention mask.
"""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader, TensorDataset

import checkpoint
import policies
import puma
import sample
from data import files
from lab import evaluate, likelihood
from loss import objective

ABOUT = "puma.json"  # beside the weights: how to read them


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
    ends an answer (None: none), are for `evaluate`; library: Trainer's. Raises ValueError.
    """

    METHODS = "puma", "puma_plus", "mdm"

    def __init__(self, net, args, rows, mask_token, shift=False, method="puma", K=8, tau=0.9,
                 policy="top_k", buffer=None, chains_from=0, eval_dataset=None, end=None,
                 **library):  # fmt: skip
        if method not in self.METHODS:
            raise ValueError(f"{method=}: expected {', '.join(self.METHODS)}")
        if policy not in policies.POLICIES or not 0 < tau <= 1:
            raise ValueError(f"{policy=}, {tau=}: expected {', '.join(policies.POLICIES)}, 0 to 1")
        unused = {"compute_metrics", "data_collator", "train_dataset"} & library.keys()
        if unused or args.label_smoothing_factor:
            raise ValueError(f"not used: {min(unused, default='label_smoothing_factor')}")
        usable(net, mask_token, rows)
        length = rows[np.zeros(1, int)][0].shape[1]
        if not 1 <= K <= length:
            raise ValueError(f"{K=}: expected 1 to {length} tokens, the length of a row")
        if eval_dataset is not None:
            usable(net, mask_token, eval_dataset)
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
        self.length = length
        self.how = {"method": method, "tau": tau, "buffer": buffer, "chains_from": chains_from}
        self.kept = f"chains_{args.process_index}_of_{args.world_size}.pt"

    def get_train_dataloader(self):
        """Begin the streams. What Trainer itself reads are numbers: rows come from the streams."""
        args = self.args
        puma.draw_from(args.seed, args.process_index, 0)  # for the first chains
        queue = puma.Queue(self.rows, args.train_batch_size, args.device, args.seed,
                           args.process_index, args.world_size)  # fmt: skip
        passes = args.gradient_accumulation_steps
        how = self.how | {"k_schedule": [(0, self.K)], "grad_accum": passes}
        size = args.train_batch_size * passes
        masks, chains, self.begin = puma.make_streams(self, queue, **how, batch_size=size)
        self.streams = {"queue": queue, "masks": masks} | ({"chains": chains} if chains else {})
        updates = math.ceil(len(self.rows) / (size * args.world_size))  # of an epoch
        return DataLoader(TensorDataset(torch.arange(updates * passes)))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        update = self.state.global_step
        passes = self.args.gradient_accumulation_steps
        number = update * passes + int(inputs[0]) % passes  # of the forward pass in the run
        puma.draw_from(self.args.seed, self.args.process_index, 1 + number)  # all of its randomness
        if self.begin is None and number % (10 * passes) == 0:
            sure = self.accelerator.reduce(self.streams["masks"].sure, "mean")
            self.begin = update if sure > 0.5 else None
        masks_only = self.begin is None or update < self.begin
        stream = self.streams["masks" if masks_only else "chains"]
        scored = Scored(model, self.mask_token, self.shift)
        with self.accelerator.autocast():  # the head, too
            loss, *seen = objective(scored, self.policy, *stream.batch(update))
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
        usable(self.model, self.mask_token, rows)
        args = self.args
        was_training = self.model.training
        scored = Scored(self.model.eval(), self.mask_token, self.shift)
        sums = torch.zeros(5, device=args.device)
        batches = torch.arange(len(rows)).split(args.eval_batch_size)
        for at in batches[args.process_index :: args.world_size]:
            puma.draw_from(int(at[0]))
            x0, prompt = (torch.as_tensor(part).to(args.device) for part in rows[at.numpy()])
            with self.accelerator.autocast():
                sums += torch.tensor(self.measured(scored, x0.long(), prompt), device=args.device)
        self.model.train(was_training)
        count, right, loss, states, chain_loss = self.accelerator.reduce(sums, "sum").tolist()
        found = {"right": right / count, "loss": loss / count}
        found |= {"chain_loss": chain_loss / states} if states else {}
        found = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(found)
        self.control = self.callback_handler.on_evaluate(args, self.state, self.control, found)
        return found

    def measured(self, scored, x0, prompt):
        """Of rows (n, L): n, right answers, sum of losses; of chains: states, sum of losses."""
        x, _ = evaluate.fill(scored, sample.generate, x0, prompt, self.policy, self.K)
        right = evaluate.score(x, x0.cpu().numpy(), prompt.cpu().numpy(), self.end)["right"] == 1
        effective = (~prompt).sum(1)
        loss = likelihood.nelbo(scored, x0, prompt, masks=1).sum(1) / effective
        found = [len(x0), right.sum(), loss.sum(), 0, 0]
        hidden = ~prompt
        stage = torch.zeros_like(effective)
        while len(x0) and self.how["method"] != "mdm":
            x = x0.masked_fill(hidden, self.mask_token)
            loss, *seen = objective(scored, self.policy, x, x0, hidden)
            found[3] += len(x0)
            found[4] += len(x0) * loss
            seen += puma.uniform(effective), puma.stage_count(x.shape[1], self.K), self.how["tau"]
            hidden, stage, ended = puma.step(hidden, stage, effective, *seen)
            x0, hidden, stage, effective = (p[~ended] for p in (x0, hidden, stage, effective))
        return found

    # -- what checkpoints and trained folders have beside the weights
    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        about = {"mask_token": self.mask_token, "shift": self.shift, "length": self.length}
        about["vocab_size"] = self.model.config.vocab_size
        files.write_json(Path(output_dir or self.args.output_dir, ABOUT), about)

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


def usable(net, mask_token, rows):
    """Raise ValueError for rows that cannot be trained on; the first thousand are looked at."""
    kinds = dict, list, tuple, np.ndarray, torch.Tensor
    if isinstance(rows, kinds) or hasattr(rows, "column_names") or not rows:  # of datasets; none
        raise ValueError(f"expected rows[indices] -> x0, prompt, not {rows!r:.99}")
    x0, prompt = (torch.as_tensor(part) for part in rows[np.arange(min(len(rows), 1000))])
    size = len(net.get_output_embeddings().weight)
    if prompt.all(1).any():
        raise ValueError("rows have one that is all prompt: nothing is left to predict")
    if (x0[~prompt] == mask_token).any():
        raise ValueError(f"rows have the mask token {mask_token} where it is to be predicted")
    if not 0 <= x0.min() <= x0.max() < size:
        raise ValueError(f"rows have tokens up to {x0.max()}, the model {size} of them")


def load(name, dtype="auto"):
    """A model that sees both sides, and whether its row i - 1 scores token i."""
    if Path(name, "adapter_config.json").exists():  # PumaTrainer has written it
        import peft

        net, shift = load(peft.PeftConfig.from_pretrained(name).base_model_name_or_path)
        net.resize_token_embeddings(json.loads(Path(name, ABOUT).read_text())["vocab_size"])
        return peft.PeftModel.from_pretrained(net, name, is_trainable=True), shift
    if int(transformers.__version__.split(".")[0]) < 5:
        raise SystemExit("transformers before 5 ignores is_causal: pip install 'transformers>=5'")
    kept, _ = transformers.PreTrainedConfig.get_config_dict(name)
    if kept.get("model_type") == "Dream":  # the library has no class of this name
        config = transformers.Qwen2Config.from_dict(kept | {"model_type": "qwen2"})
    else:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    if config.is_encoder_decoder:
        raise ValueError(f"{name}: an encoder with a decoder, which fills in no masks")
    shift = "Masked" not in str(config.architectures)
    if shift:
        config.is_causal = False
    kind = transformers.AutoModelForCausalLM if shift else transformers.AutoModelForMaskedLM
    how = {"config": config, "dtype": dtype, "trust_remote_code": False}  # no code of others runs
    net, seen = kind.from_pretrained(name, output_loading_info=True, **how)
    if seen["missing_keys"]:  # the library has drawn them at random
        raise SystemExit(f"{name} lacks {min(seen['missing_keys'])} of a {type(net).__name__}")
    return net, shift


@torch.no_grad()
def check(net, mask_token):
    """Raise ValueError where a model of the library does not do what Scored takes it to do."""
    x = torch.tensor([[1, 2, 3], [1, 2, 4]], device=net.device)
    scored = Scored(net.eval(), mask_token, shift=False)
    logits = scored.logits(scored(x))
    if torch.equal(logits[0, 1], logits[1, 1]):
        raise ValueError(f"{net.config.model_type}: its states do not see what follows")
    own = net(input_ids=x).logits.float()
    own[..., mask_token] = -torch.inf
    if not torch.allclose(logits, own, 1e-2, 1e-2):
        raise ValueError(f"{net.config.model_type}: its logits are not its head times its states")
