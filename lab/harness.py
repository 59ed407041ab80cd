"""A model trained here as one of lm-evaluation-harness (pip install lm_eval).

    python lab/harness.py --model puma --model_args out_dir=out/tinygsm,tau=0.9 --tasks gsm8k
    HF_ALLOW_CODE_EVAL=1 python lab/harness.py --model puma --tasks humaneval \
        --model_args pretrained=out/dream_coder,policy=entropy,temperature=0.2,length=1536 \
        --confirm_run_unsafe_code
    ... --tasks mbpp_plus --num_fewshot 0 --model_args ...,temperature=0.1,...

All flags are the harness's, as --batch_size=16. HumanEval's programs run in the harness's own way,
not in lab/sandbox.py. The model_args are Puma's: out_dir, a run of train.py on text, or pretrained,
a folder that lab/hf.py has written; a sampler as in sample.py, in place of a task's; length, of a
row, 0 = as in training. A context is cut to half a row, from the left; the answer, which fills in
the rest, at `until` and max_gen_toks. A choice has the likelihood, given its length, along the
policy's order (lab/likelihood.py); the target_delimiter of its task is to be that of training.
"""

import itertools
import json
import sys
from pathlib import Path

if not __package__:  # not lab/ itself, whose evaluate.py would be taken for the package evaluate
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences
from tqdm import tqdm

import checkpoint
import policies
import sample
from configurator import pick
from data import rows
from lab import likelihood


@register_model("puma")
class Puma(LM):
    def __init__(self, out_dir="", pretrained="", policy="top_k", reveal=1, tau=1.0,
                 temperature=0.0, length=0, batch_size=1, max_batch_size=None,
                 device=None):  # fmt: skip
        super().__init__()
        if bool(out_dir) == bool(pretrained):
            raise SystemExit("model_args: expected out_dir=RUN of train.py, or pretrained=FOLDER")
        self._device = (device or "cuda") if torch.cuda.is_available() else "cpu"
        self.batch_size = int(batch_size)
        opened = of_run(out_dir, self._device) if out_dir else of_folder(pretrained, self._device)
        self.model, self.fill, self.tokenizer, own_length = opened
        self.length = length or own_length
        score_of = policies.POLICIES[pick("policy", policy, policies.POLICIES)]
        self.sampler = score_of, reveal, tau, temperature

    def generate_until(self, requests, disable_tqdm=False):
        answers = []
        for at in tqdm(range(0, len(requests), self.batch_size), disable=disable_tqdm):
            batch = [request.args for request in requests[at : at + self.batch_size]]
            contexts = [self.ids(text) for text, _ in batch]
            x = torch.full((len(batch), self.length), -1, device=self._device)
            for row, context in zip(x, contexts, strict=True):
                row[: len(context)] = torch.tensor(context)
            with torch.autocast("cuda", torch.bfloat16, enabled="cuda" in self._device):
                x, _ = self.fill(self.model, x, x < 0, *self.sampler)
            for row, context, (_, how) in zip(x.tolist(), contexts, batch, strict=True):
                answers.append(self.text(row[len(context) :], how))
        return answers

    def ids(self, text):
        begin = self.tokenizer.special.get("<|beginoftext|>")  # as Dream begins
        start = [] if begin is None else [begin]
        return (start + self.tokenizer.encode(text))[-(self.length // 2) :]

    def text(self, ids, how):
        """What they say before the first special token, or a stop of the task's."""
        special = {*self.tokenizer.special.values()}
        words = itertools.takewhile(lambda i: i not in special, ids[: how.get("max_gen_toks")])
        text = self.tokenizer.decode([*words])
        for stop in handle_stop_sequences(how.get("until"), eos=None):
            text = text.partition(stop)[0]
        return text

    def loglikelihood(self, requests, disable_tqdm=False):
        """Of each (context, choice): its log-likelihood, and whether it is what a sampler says."""
        if self.fill is not sample.generate:
            raise SystemExit("a variant with a sampler of its own has no likelihoods here")
        found = []
        for at in tqdm(range(0, len(requests), self.batch_size), disable=disable_tqdm):
            batch = [request.args for request in requests[at : at + self.batch_size]]
            x = torch.full((len(batch), self.length), self.tokenizer.end, device=self._device)
            hidden = torch.zeros_like(x, dtype=torch.bool)
            for row, is_hidden, (context, choice) in zip(x, hidden, batch, strict=True):
                given = self.ids(context)
                ids = given + self.tokenizer.encode(choice)
                if len(ids) > self.length:
                    raise SystemExit(f"{len(ids)} tokens: a choice does not fit into {self.length}")
                row[: len(ids)] = torch.tensor(ids)
                is_hidden[len(given) : len(ids)] = True
            nats, _ = likelihood.chain(self.model, x, ~hidden, self.sampler[0], K=1)
            said, _ = sample.generate(self.model, x, hidden, self.sampler[0], reveal=1)
            found += zip((-nats.sum(1)).tolist(), (said == x).all(1).tolist(), strict=True)
        return found

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise SystemExit("lab/harness.py has no likelihoods of whole documents")


# -- what to open: model, sampler, tokenizer, tokens of a row --------------------------------------
def of_run(out_dir, device):
    model, run = checkpoint.load_model(out_dir, device)
    fill = checkpoint.of_variant(run["variant"], "generate", sample.generate)
    header = json.loads(Path(run["data"], "header.json").read_text())
    return model, fill, rows.kept(run["data"]), header["length"]


def of_folder(folder, device):
    from lab import hf, trainer  # need transformers

    about = Path(folder, trainer.ABOUT)
    if not about.exists():
        raise SystemExit(f"{folder} has no {trainer.ABOUT}: lab/hf.py has not written it")
    about = json.loads(about.read_text())
    net, _ = trainer.load(folder)
    model = trainer.Scored(net.to(device).eval(), about["mask_token"], about["shift"])
    has_tokens = Path(folder, "header.json").exists()  # it was trained on a folder of tokens
    coder = rows.kept(folder) if has_tokens else hf.coder_of(folder)[1]
    return model, sample.generate, coder, about["length"]


if __name__ == "__main__":
    cli_evaluate()
