"""Our sampler as a model of the lm-evaluation-harness (pip install lm_eval).

    python -m examples.harness --model puma --model_args out_dir=RUN,tau=0.9 --tasks gsm8k

All flags are the harness's own. model_args: `Puma`'s arguments and a Sampler's fields. To generate,
the sampler fills in the rest of a row of the run's length and ignores the requested temperature;
the answer is cut at `until` and at max_gen_toks, and the context so that max_gen_toks, or half a
row if that is less, are left. A likelihood is a bound: minus the NELBO of the continuation given
the context, by `masks` masks (`likelihood`); choices are compared by their bounds. This file is
not named lm_eval.py, because `import lm_eval` could then find it.
"""

import numpy as np
import torch

from configurator import errors_as_messages
from engine import machine
from engine.files import progress_bar
from puma import choose_random
from runs import likelihood
from runs.saved import open_run
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
        self.sampler = Sampler(**sampler)
        self.masks = masks
        self.seed = seed
        self.sampler.check()
        self.batch_size = int(batch_size)
        absent = device.startswith("cuda") and not torch.cuda.is_available()  # its flag's default
        where = torch.device(device) if device and not absent else machine.best_device()
        self.saved = open_run(out_dir, where, length)
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
            contexts = [
                self.ids(text)[min(n, self.length // 2) - self.length :]
                for text, n in zip(contexts, most, strict=True)
            ]
            rows = zip(self.fill_in(contexts), contexts, most, settings, strict=True)
            answers += [self.text(row[len(ids) :][:n], how) for row, ids, n, how in rows]
        return answers

    def ids(self, context):
        return self.encoding.start + self.encoding.encode(context)

    def fill_in(self, contexts, length=0):
        """The contexts, each continued by the sampler to a full row: lists of ids."""
        x = np.full((len(contexts), length or self.length), self.saved.model.mask_token)
        hidden = np.arange(x.shape[1]) >= np.array([[len(ids)] for ids in contexts])
        x[~hidden] = [i for ids in contexts for i in ids]
        x, hidden = (torch.from_numpy(part).to(self.device) for part in (x, hidden))
        return generate(self.saved.model, x, hidden, self.sampler, self.saved.block)[0].tolist()

    def text(self, ids, how):
        """The text of an answer's ids, up to an end token or one of the texts in `until`."""
        text = answer_text(self.encoding, ids)
        stops = how.get("until") or []
        for stop in filter(None, [stops] if isinstance(stops, str) else stops):
            text = text.partition(stop)[0]
        return text

    def loglikelihood(self, requests, disable_tqdm=False):
        """(bound in nats, whether the sampler would write the continuation) of each request."""
        results = []
        for request in progress_bar(requests, unit="request", show=not disable_tqdm):
            context = self.ids(request.args[0])
            answer = self.encoding.encode(request.args[1])
            answer = answer[: self.length]
            context = context[max(0, len(context) + len(answer) - self.length) :]
            written = self.fill_in([context], len(context) + len(answer))[0]
            results.append((self.bound(context, answer), written == context + answer))
        return results

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """The bound of a text: the sum over its consecutive rows, each without a context."""
        results, n = [], self.length
        for request in progress_bar(requests, unit="text", show=not disable_tqdm):
            ids = self.encoding.encode(request.args[0])
            rows = (ids[at : at + n] for at in range(0, len(ids), n))
            results.append(sum(self.bound([], row) for row in rows))
        return results

    def bound(self, context, answer):
        """Minus the NELBO of the answer, nats. Raises ValueError if the model has none."""
        model, block = self.saved.model, self.saved.block
        if model.causal or 0 < block < self.length:
            raise ValueError("a likelihood bound needs a bidirectional model without blocks")
        if not answer:
            return 0.0
        generator = torch.Generator().manual_seed(self.seed)
        size = self.batch_size
        x0 = torch.tensor([context + answer]).expand(self.masks, -1)
        given = torch.arange(x0.shape[1]) < len(context)
        count = likelihood.stratified(torch.tensor([len(answer)]), self.masks, generator)[0]
        hidden = choose_random(~given.expand_as(x0), count, generator)  # (masks, L)
        parts = zip(x0.split(size), hidden.split(size), strict=True)
        nll = torch.cat([likelihood.hidden_nll(model, *part).sum(1) for part in parts])  # (masks,)
        return -(nll * len(answer) / count).mean().item()


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    with errors_as_messages():
        cli_evaluate()
