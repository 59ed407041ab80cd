"""Byte-pair encoding as Qwen2 does it: text -> ids, and special ids that no text encodes to.

Text is normalised to NFC and split into words by PATTERN (every digit is a word). In each word the
adjacent pair that makes the token of lowest rank is merged until no pair makes a token; id = rank.
The special tokens come after the n ids of text (SPECIAL): Qwen2 has n = 151,643.

Ranks are {bytes: rank}, on disk as a `.tiktoken` file. Other tokenizers are in vocabularies.py.
"""

import base64
import hashlib
import itertools
import unicodedata

import tiktoken
import tiktoken.load

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"  # sha256 of its ranks
QWEN2_URL = (  # of their owner's SDK
    "https://raw.githubusercontent.com/dashscope/dashscope-sdk-python/"
    "c0d7a0b7174c1b24033be61cdb00dab45da93036/dashscope/resources/qwen.tiktoken"
)
BYTES = [bytes([byte]) for byte in range(256)]
END, MASK = "<|endoftext|>", "<|mask|>"  # END ends a text and pads it
IM_START, IM_END, BEGIN = "<|im_start|>", "<|im_end|>", "<|beginoftext|>"
SPECIAL = {  # {name: ({token: id - n}, how many ids there are after those of text)}
    "plain": ({END: 0, MASK: 1}, 2),
    "dream": ({END: 0, IM_START: 1, IM_END: 2, BEGIN: 22, MASK: 23}, 421),  # 152,064 ids in all
}


class Vocabulary:
    """n ids of text, and special ones of a kind (SPECIAL) after them: `special` {token: id}.

    `end`, `mask`, `vocab_size`; `content`, of its `file`, and `checksum`, the sha256 of it.
    Subclasses have `encode(text)` and `decode_text(ids below n)`.
    """

    file = "tokenizer.tiktoken"  # in the folder of a corpus

    def __init__(self, n, special, content):
        offsets, count = SPECIAL[special]
        self.special = {token: n + offset for token, offset in offsets.items()}
        self.end = n
        self.mask = self.special[MASK]
        self.vocab_size = n + count
        self.content = content
        self.checksum = hashlib.sha256(content).hexdigest()
        self.names = {i: f"<|{i}|>" for i in range(n, n + count)}
        self.names |= {i: token for token, i in self.special.items()}

    def decode(self, ids):
        """The text of all ids; special ones show by name, like `<|endoftext|>`, or by number.

        Invalid UTF-8 becomes U+FFFD. Raises ValueError for an id outside the vocabulary.
        """
        ids = [int(i) for i in ids]
        if wrong := [i for i in ids if not 0 <= i < self.vocab_size]:
            raise ValueError(f"id {wrong[0]}: must be 0 to {self.vocab_size - 1}")
        groups = itertools.groupby(ids, key=lambda i: i in self.names)
        return "".join(
            "".join(self.names[i] for i in group) if special else self.decode_text([*group])
            for special, group in groups
        )

    def text(self, ids):
        """The text of ids (k,), an array, up to the first end."""
        return self.decode(itertools.takewhile(lambda i: i != self.end, ids.tolist()))


class Tokenizer(Vocabulary):
    """Encodes text to ids 0..n-1 by n ranks; kind: of the special tokens, a key of SPECIAL.

    Raises ValueError if a rank is missing or taken twice, or if a byte has none.
    """

    def __init__(self, ranks, kind="plain"):
        if sorted(ranks.values()) != list(range(len(ranks))):
            raise ValueError(f"the {len(ranks)} ranks must be 0 to {len(ranks) - 1}, each once")
        if missing := [byte for byte in BYTES if byte not in ranks]:
            raise ValueError(f"{len(missing)} single bytes have no rank, {missing[0]} is the first")
        super().__init__(len(ranks), kind, to_text(ranks))
        self.ranks, self.kind = ranks, kind
        self.bpe = tiktoken.Encoding(
            self.checksum, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}
        )

    def encode(self, text):
        """Ids of the text, list of int. `<|endoftext|>` in it is text like any other."""
        return self.bpe.encode_ordinary(unicodedata.normalize("NFC", text))

    def decode_text(self, ids):
        return self.bpe.decode(ids)


def parse(content):
    """The ranks in the `.tiktoken` text, bytes. Raises ValueError."""
    rows = (line.split() for line in content.splitlines() if line)
    return {base64.b64decode(token, validate=True): int(rank) for token, rank in rows}


def to_text(ranks):
    """The `.tiktoken` text, bytes: a line a token, base64 and rank, in order of rank."""
    order = sorted(ranks, key=ranks.get)
    return b"".join(b"%s %d\n" % (base64.b64encode(token), ranks[token]) for token in order)


def qwen2(kind="plain"):
    """Qwen2's Tokenizer, downloaded once to tiktoken's cache (TIKTOKEN_CACHE_DIR).

    Raises OSError that says how to supply the file by hand.
    """
    try:
        content = tiktoken.load.read_file_cached(QWEN2_URL, QWEN2)
    except (OSError, ValueError) as error:  # no network; another file
        raise OSError(
            f"cannot download {QWEN2_URL} ({error}): supply Qwen2's tokenizer with --tokenizer=PATH"
        ) from None
    return Tokenizer(parse(content), kind)
