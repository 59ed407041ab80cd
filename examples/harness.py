"""Our sampler as a model of the lm-evaluation-harness (pip install lm_eval).

    python -m examples.harness --model puma --model_args out_dir=RUN,tau=0.9 --tasks gsm8k

All flags are the harness's own. model_args: those of `Puma`, and a Sampler's fields. To generate,
the sampler fills in the rest of a row of the run's length and ignores the requested temperature;
the answer is cut at `until` and at max_gen_toks, and the context so that max_gen_toks, or half a
row if that is less, are left. A likelihood is a bound: minus the NELBO of the continuation given
the context, by `masks` masks (likelihood.py); choices are compared by their bounds. This file is
not named lm_eval.py, because `import lm_eval` could then find it.
"""

import numpy as np
import torch

import likelihood
import sample
from configurator import errors_as_messages
from engine import machine
from engine.files import progress_bar
from sample import Sampler, generate
from tasks.codeeval import encoding_of
from tasks.text import answer_text

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError:
    raise SystemExit("this needs the package lm_eval: pip install lm_eval") from None


@register_model("puma")
class Puma(LM):
    """length: tokens of a row, 0 = as in training; seed: of masks and of sampled tokens."""

    def __init__(self, out_dir, masks=32, length=0, seed=1, batch_size=16, device="", **sampler):
        super().__init__()
        self.sampler, self.masks, self.seed = Sampler(**sampler), masks, seed
        self.sampler.check()
        self.batch_size = int(batch_size)
        absent = device.startswith("cuda") and not torch.cuda.is_available()  # its flag's default
        where = torch.device(device) if device and not absent else machine.best_device()
        self.saved = sample.open_run(f"{out_dir}/checkpoint.pt", where, length)
        self.encoding = encoding_of(self.saved)
        self.length = length or self.saved.model.model.cos.shape[0]
        self._device = where

    @property
    def tokenizer_name(self):
        return self.encoding.checksum

    def generate_until(self, requests, disable_tqdm=False):
        """The answers; all batches from one random state."""
        answers, size = [], self.batch_size
        torch.manual_seed(self.seed)
        for at in progress_bar(range(0, len(requests), size), unit="batch", show=not disable_tqdm):
            contexts, settings = zip(*(r.args for r in requests[at : at + size]), strict=True)
            most = [how.get("max_gen_toks", self.length) for how in settings]
            given = [
                self.ids(context)[min(n, self.length // 2) - self.length :]
                for context, n in zip(contexts, most, strict=True)
            ]
            found = zip(self.fill_in(given), given, most, settings, strict=True)
            answers += [self.text(row[len(ids) :][:n], how) for row, ids, n, how in found]
        return answers

    def ids(self, context):
        return self.encoding.start + self.encoding.encode(context)

    def fill_in(self, contexts, length=0):
        """The contexts, each continued by the sampler to a full row: lists of ids."""
        x = np.full((len(contexts), length or self.length), self.saved.model.mask_token)
        hidden = np.arange(x.shape[1]) >= np.array([[len(ids)] for ids in contexts])
        x[~hidden] = [i for ids in contexts for i in ids]
        x, hidden = (torch.from_numpy(each).to(self.device) for each in (x, hidden))
        return generate(self.saved.model, x, hidden, self.sampler, self.saved.block)[0].tolist()

    def text(self, ids, how):
        """The text of an answer's ids, up to an end token or one of the texts in `until`."""
        text, stops = answer_text(self.encoding, ids), how.get("until") or []
        for stop in filter(None, [stops] if isinstance(stops, str) else stops):
            text = text.partition(stop)[0]
        return text

    def loglikelihood(self, requests, disable_tqdm=False):
        """(bound in nats, whether the sampler would write the continuation) of each request."""
        found = []
        for request in progress_bar(requests, unit="request", show=not disable_tqdm):
            given, answer = self.ids(request.args[0]), self.encoding.encode(request.args[1])
            answer = answer[: self.length]
            given = given[max(0, len(given) + len(answer) - self.length) :]
            row = given + answer
            found.append((self.bound(given, answer), self.fill_in([given], len(row))[0] == row))
        return found

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """The bound of a text: the sum over its consecutive rows, each without a context."""
        found = []
        for request in progress_bar(requests, unit="text", show=not disable_tqdm):
            ids = self.encoding.encode(request.args[0])
            rows = [ids[at : at + self.length] for at in range(0, len(ids), self.length)]
            found.append(sum(self.bound([], row) for row in rows))
        return found

    def bound(self, given, answer):
        """Minus the NELBO of the answer, nats. Raises ValueError if the model has none."""
        model, block = self.saved.model, self.saved.block
        if model.causal or 0 < block < self.length:
            raise ValueError("a likelihood bound needs a bidirectional model without blocks")
        if not answer:
            return 0.0
        rows = np.tile(given + answer, (self.masks, 1))  # a mask each, stratified over the rows
        prompt = np.tile(np.arange(rows.shape[1]) < len(given), (self.masks, 1))
        examples, size = Rows(rows, prompt), self.batch_size
        nats, _ = likelihood.nelbo(model, examples, self.masks, no_padding, 1, size, self.seed)
        return -nats[:, 0].mean().item()


class Rows:
    """Examples as nelbo takes them: x0 (N, L) ids, prompt (N, L) bool."""

    def __init__(self, x0, prompt):
        self.x0, self.prompt = x0, prompt

    def __getitem__(self, indices):
        return self.x0[indices], self.prompt[indices]


def no_padding(x0):
    return np.zeros(x0.shape, bool)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    with errors_as_messages():
        cli_evaluate()
