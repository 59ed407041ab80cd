"""Keys and values of finished tokens, for models that fill in a row block by block from the left.

lab/block.py and, as the case of blocks of one token, lab/ar.py sample with it: a block never sees a
later one, so what it has computed of a finished block stays as it is.
"""

import torch
import torch.nn.functional as F

from model import rotary_table, rotate


class Cache:
    """A model of the next block alone, as sample.generate takes it."""

    def __init__(self, model, rows):
        self.model = model
        self.mask_token = model.mask_token
        self.vocab_size = model.vocab_size
        self.logits = model.logits
        self.rows = slice(None)  # of the batch, those that the next call is about
        attention = model.model.layers[0].self_attn.k_proj
        heads = attention.out_features // model.model.width
        empty = attention.weight.new_empty(rows, heads, 0, model.model.width)
        self.kept = [(empty, empty) for _ in model.model.layers]

    def __call__(self, x):
        """x (n, block) -> states (n, block, dim)"""
        kept = [(keys[self.rows], values[self.rows]) for keys, values in self.kept]
        return extend(self.model.model, x, kept)[0]

    def keep(self, x):
        """Append finished tokens x (N, n); their states (N, n, dim)."""
        h, self.kept = extend(self.model.model, x, self.kept)
        return h


def extend(body, x, kept):
    """model.Body on tokens x (B, n), after m whose keys and values (B, heads, m, width) are kept.

    Every new token sees all the others. Returns states (B, n, dim), keys and values of m + n.
    """
    m = kept[0][0].shape[2]
    places = torch.arange(m, m + x.shape[1], device=x.device)
    cos, sin = rotary_table(places, body.width, body.theta)
    h = body.embed_tokens(x)
    longer = []
    for layer, (keys, values) in zip(body.layers, kept, strict=True):
        attention = layer.self_attn
        given = layer.input_layernorm(h)
        q, k, v = (
            proj(given).unflatten(-1, (-1, body.width)).transpose(1, 2)  # (B, heads, n, width)
            for proj in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        keys = torch.cat((keys, rotate(k, cos, sin)), 2)
        values = torch.cat((values, v), 2)
        out = F.scaled_dot_product_attention(rotate(q, cos, sin), keys, values)
        h = h + attention.o_proj(out.transpose(1, 2).flatten(2))
        h = h + layer.mlp(layer.post_attention_layernorm(h))
        longer.append((keys, values))
    return body.norm(h), longer
