"""A key-value cache: keys and values of finished tokens, reused while later tokens are filled in.

In block diffusion (arXiv 2503.09573) the tokens of a block see their own block and the finished
blocks before it, never a later one. So the keys and values of a finished block never change, and
the states (B, block, dim) of the current block equal, up to rounding, those of a pass over the
whole sequence. A causal model is the case of blocks of one token.
Not here: which tokens are filled in (sample.py), attention while training (model.py).
"""

import torch

from model import attend


class Cache:
    """The `start` finished tokens of B rows: whole blocks of `block` tokens, 1 if causal.

    Keys and values of all layers take 2 * layers * B * length * kv_heads * head width numbers.
    """

    def __init__(self, model, length, block):
        self.model, self.length, self.block = model, length, block
        self.start, self.passes, self.kept, self.before = 0, 0, {}, None

    def states(self, x):
        """x (B, block), the next block as it is now -> (B, block, dim): row i scores token i."""
        if self.model.shifted and x.shape[1] == 1 and self.start > 0:
            return self.before  # the state of the last finished token: no pass is needed
        h = self.run(x)
        return self.model.aligned(h, self.before if self.start > 0 else self.model.first(h))

    def keep(self, x):
        """Append finished blocks, x (B, n)."""
        self.before = self.run(x)[:, -1:]
        self.start += x.shape[1]

    def run(self, x):
        self.passes += 1
        return self.model.model(x, slice(self.start, self.start + x.shape[1]), self.attention)

    def attention(self, layer, q, k, v):
        """Queries of new tokens see the kept keys, and the new keys up to their own block.

        New keys and values are stored after the kept ones; the next pass overwrites those of an
        unfinished block.
        """
        end = self.start + k.shape[2]
        if layer not in self.kept:
            self.kept[layer] = tuple(
                t.new_empty(*t.shape[:2], self.length, t.shape[3]) for t in (k, v)
            )
        for store, new in zip(self.kept[layer], (k, v), strict=True):
            store[:, :, self.start : end] = new
        keys, values = (store[:, :, :end] for store in self.kept[layer])
        if k.shape[2] == self.block:  # one block sees everything so far
            return attend(q, keys, values)
        block = torch.arange(end, device=q.device) // self.block
        return attend(q, keys, values, visible=block <= block[self.start :, None])
