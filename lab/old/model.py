"""A Qwen2-style transformer, bidirectional or causal.

    h = model(x)              (B, L) token ids, the mask token included -> (B, L, dim)
    h = model(x, x0, block)   the same in blocks of that size, each given the clean x0 before it
    h = model(x, carry=c)     the same after a step that computed c (B, L, dim): carry.py
    logits = model.logits(h)  (..., dim) -> (..., vocab_size)

The two calls are separate because a large output head should only be evaluated where it is needed.
`Logits` gives any function x -> logits these two calls, so losses and sampler accept other models.
Row i of h always scores token i: a model trained to predict the next token (`shifted`) is aligned
in here, so nothing else need know. The mask token has probability zero everywhere. Modules have the
names of Hugging Face's Qwen2 (arXiv 2407.10671), so that its checkpoints load without renaming.
"""

import functools
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

# There is no dropout, so the random state need not be kept for the second time
again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
SHORT = 128  # up to this length, attention on a CPU is plain matrix products


class Transformer(nn.Module):
    """vocab_size counts the mask token; length is the longest sequence; mlp is the inner width.

    kv_heads < heads is grouped-query attention; theta is the base of the rotary frequencies.
    shifted: the output at position i - 1 scores token i, as it must in a causal model.
    carry: it takes its states of a previous step (carry.py). loops: passes through the layers; with
    a carry, each begins as another step at the same x would.
    """

    def __init__(
        self, vocab_size, mask_token, length, dim, layers, heads, mlp,
        kv_heads=None, theta=1e4, eps=1e-6, tied=False, causal=False, shifted=False,
        carry=False, loops=1,
    ):  # fmt: skip
        super().__init__()
        kv_heads = kv_heads or heads
        if dim % heads or heads % kv_heads or dim // heads % 2:
            groups = f", over {kv_heads=}" * (kv_heads != heads)
            raise ValueError(f"{dim=} must split into {heads=} of even width{groups}")
        if causal and not shifted:
            raise ValueError("a causal model must be shifted: row i may see only tokens before i")
        self.vocab_size, self.mask_token = vocab_size, mask_token
        self.causal, self.shifted = causal, shifted
        self.carries = dim if carry else 0  # width of the carry
        self.model = Body(vocab_size, length, dim, layers, heads, kv_heads, mlp, theta, eps, carry)
        self.model.loops = loops
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.initialise(layers)

    @torch.no_grad()
    def initialise(self, layers):
        """Normal, std 0.02; divided by sqrt(2 layers) for weights that write to the residual."""
        for name, p in self.named_parameters():
            if name.endswith("bias") or name == "model.carry_norm.weight":
                p.zero_()
            elif p.dim() == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                p.normal_(std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, x, x0=None, block=0, carry=None):
        """(B, L) ids -> (B, L, dim). block: the size of block diffusion's blocks, 0 = none.

        Each block then sees only itself and the clean tokens x0 before it (arXiv 2503.09573).
        carry (B, L, dim): the previous step's result; None = zeros, as at the first.
        """
        L = x.shape[1]
        if not self.causal and 0 < block < L:
            return self.blockwise(x, x0, block, carry)
        attention = causal if self.causal else bidirectional
        h = self.model(x, slice(L), attention, carry)
        return self.aligned(h, self.first(h))

    def blockwise(self, x, x0, block, carry):
        """All blocks in one pass over [x ; x0], both (B, L) -> (B, L, dim).

        Row i sees x in its own block and x0 before it.
        """
        if x0 is None:
            raise ValueError("with blocks the model also needs x0, the clean tokens before a block")
        places = torch.arange(x.shape[1], device=x.device)
        attention = block_causal(len(places), block, x.device)
        if carry is not None:
            carry = torch.cat((carry, torch.zeros_like(carry)), 1)
        h = self.model(torch.cat((x, x0), 1), places.repeat(2), attention, carry)
        noisy, clean = h.chunk(2, 1)
        # Blocks of 2, shifted: tokens 1 and 3 are scored by the noisy states 0 and 2 of their own
        # block; token 2 begins a block, so the clean state 1 scores it, as it will when sampling.
        first_of_block = places[1:, None] % block == 0  # (L - 1, 1)
        before = torch.where(first_of_block, clean[:, :-1], noisy[:, :-1])  # (B, L - 1, dim)
        return torch.cat((self.first(noisy), before), 1) if self.shifted else noisy

    def aligned(self, h, before):
        """h (B, n, dim) of n consecutive tokens, before (B, 1, dim) -> row i scores token i."""
        return torch.cat((before, h[:, :-1]), 1) if self.shifted else h

    def first(self, h):
        """The state (B, 1, dim) that scores token 0 of a shifted model: it has no predecessor.

        With bidirectional attention, its own position stands in (as in Dream). In a causal model
        that would reveal the token: zeros make all tokens equally likely.
        """
        return torch.zeros_like(h[:, :1]) if self.causal else h[:, :1]

    def logits(self, h):
        return never(self.lm_head(h), self.mask_token)


class Logits(nn.Module):
    """Wraps your own model for losses.Objective and sample.generate.

        model = Logits(function, mask_token)
        loss, score, confidence = Objective(model)(x, x0, hidden)
        tokens, revealed_at, passes = generate(model.eval(), x, hidden, Sampler())

    function: any callable, also a Hugging Face model: (B, L) token ids -> logits (B, L, V), where
    row i scores token i and sees both sides of it. V counts the mask token, whose logit is ignored.
    If the function is a module, its parameters are also this one's. All of (B, L, V) is held: for a
    large vocabulary losses.ChunkedObjective holds less; its model needs a forward pass to
    (B, L, dim), `mask_token` and `lm_head`, as Transformer has.
    """

    causal = False
    carries = 0
    vocab_size = 1  # V, once a pass has shown it

    def __init__(self, function, mask_token):
        super().__init__()
        self.function, self.mask_token = function, mask_token

    def forward(self, x, x0=None, block=0):
        """(B, L) ids -> (B, L, V). Raises ValueError for another shape, or with blocks."""
        if block:
            raise ValueError(f"block {block}: expected 0, as a function of x alone has no blocks")
        logits = self.function(x)
        logits = getattr(logits, "logits", logits)
        shape = getattr(logits, "shape", (type(logits).__name__,))
        if shape[:-1] != x.shape or self.mask_token not in range(shape[-1]):
            raise ValueError(
                f"logits {tuple(shape)} for tokens {tuple(x.shape)} and mask token "
                f"{self.mask_token}: expected (B, L, V), with the mask token in 0 to V - 1"
            )
        return logits

    def logits(self, h):
        self.vocab_size = h.shape[-1]
        return never(h, self.mask_token)


def never(logits, token):
    """Logits (..., V), in at least float32, that give the token probability zero."""
    is_token = torch.arange(logits.shape[-1], device=logits.device) == token
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.masked_fill(is_token, -torch.inf)


class Body(nn.Module):
    gradient_checkpointing = False  # keep only the layers' inputs, compute the rest twice
    loops = 1

    def __init__(self, vocab_size, length, dim, layers, heads, kv_heads, mlp, theta, eps, carry):
        super().__init__()
        self.carry_norm = nn.LayerNorm(dim, eps) if carry else None
        self.embed_tokens = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, kv_heads, mlp, eps) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, eps)
        cos, sin = rotary_table(length, dim // heads, theta)
        self.register_buffer("cos", cos, persistent=False)  # (length, head width)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x, places, attention, carry=None):
        """x (B, n) tokens at positions `places`, a slice or (n,); attention: as `bidirectional`."""
        embedded = h = self.embed_tokens(x)  # (B, n, dim)
        recompute = self.gradient_checkpointing and torch.is_grad_enabled()
        for loop in range(self.loops):
            if self.carry_norm:
                carry = torch.zeros_like(h) if carry is None else carry.to(h)
                h = embedded + self.carry_norm(carry)
            for number, layer in enumerate(self.layers, start=loop * len(self.layers)):
                args = h, self.cos[places], self.sin[places], functools.partial(attention, number)
                h = again(layer, *args) if recompute else layer(*args)
            carry = self.norm(h)
        return carry


class Layer(nn.Module):
    def __init__(self, dim, heads, kv_heads, mlp, eps):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(dim, eps)
        self.self_attn = Attention(dim, heads, kv_heads)
        self.post_attention_layernorm = nn.RMSNorm(dim, eps)
        self.mlp = SwiGLU(dim, mlp)

    def forward(self, h, cos, sin, attention):
        h = h + self.self_attn(self.input_layernorm(h), cos, sin, attention)
        return h + self.mlp(self.post_attention_layernorm(h))


class Attention(nn.Module):
    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.width = dim // heads
        self.q_proj = nn.Linear(dim, heads * self.width)
        self.k_proj = nn.Linear(dim, kv_heads * self.width)
        self.v_proj = nn.Linear(dim, kv_heads * self.width)
        self.o_proj = nn.Linear(heads * self.width, dim, bias=False)

    def forward(self, h, cos, sin, attention):
        B, L, _ = h.shape
        q, k, v = (
            proj(h).view(B, L, -1, self.width).transpose(1, 2)  # (B, heads, L, width)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = attention(rotate(q, cos, sin), rotate(k, cos, sin), v)  # (B, heads, L, width)
        return self.o_proj(out.transpose(1, 2).reshape(B, L, -1))  # (B, L, dim)


class SwiGLU(nn.Module):
    def __init__(self, dim, mlp):
        super().__init__()
        self.gate_proj = nn.Linear(dim, mlp, bias=False)
        self.up_proj = nn.Linear(dim, mlp, bias=False)
        self.down_proj = nn.Linear(mlp, dim, bias=False)

    def forward(self, h):
        return self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))  # inside (B, L, mlp)


def rotary_table(length, width, theta):
    """cos and sin (length, width) of position * theta^(-2i/width), each half holding all i."""
    frequency = theta ** (-torch.arange(0, width, 2).float() / width)
    angle = torch.arange(length).float()[:, None] * frequency  # (length, width / 2)
    angle = torch.cat((angle, angle), 1)
    return angle.cos(), angle.sin()


def rotate(t, cos, sin):
    """Rotary embedding (arXiv 2104.09864): component i turns with component i + width/2."""
    first, second = t.chunk(2, -1)  # (B, heads, n, width / 2) each
    return (t * cos + torch.cat((-second, first), -1) * sin).to(t.dtype)


def bidirectional(layer, q, k, v):
    """Attention of a layer (its number) for queries (B, heads, n, width), keys and values."""
    return attend(q, k, v)


def causal(layer, q, k, v):
    return attend(q, k, v, causal=True)


def block_causal(L, block, device):
    """Attention over [x ; x0], with a boolean mask."""
    index = torch.arange(2 * L, device=device)
    return functools.partial(masked, sees(L, block, index[:, None], index))


def sees(L, block, query, key):
    """Whether token `query` sees token `key`, both indices into the 2L tokens of [x ; x0].

    Tokens of the same half and block see each other; all see the clean tokens of earlier blocks.
    """
    same_half = query // L == key // L
    own = query % L // block
    other = key % L // block
    return (same_half & (own == other)) | ((key >= L) & (other < own))


def masked(visible, layer, q, k, v):
    return attend(q, k, v, visible=visible)


def attend(q, k, v, causal=False, visible=None):
    """q (B, heads, n, width); k, v (B, kv_heads, m, width); visible (n, m) bool, None = all.

    At short lengths on a CPU: plain products, which a compiler fuses (results/speed.md).
    """
    if (groups := q.shape[1] // k.shape[1]) > 1:
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    if q.device.type != "cpu" or k.shape[-2] > SHORT:
        return F.scaled_dot_product_attention(q, k, v, visible, is_causal=causal)
    score = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5  # (B, heads, n, m)
    if causal:
        visible = score.new_ones(score.shape[-2:], dtype=torch.bool).tril()
    if visible is not None:
        score = score.masked_fill(~visible, -torch.inf)
    return score.softmax(-1).to(v.dtype) @ v  # (B, heads, n, width)
