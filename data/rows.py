"""Text as token ids on disk, for text.py, and the tokenizer that says what they say.

An example of L tokens is `prompt, newline | response, end, end, ...`: what is left of the bar is
given, the rest is predicted, padding included. The two parts are encoded apart, since at inference
only the prompt is known: in a single text a token could span the bar. What does not fit with one
`end` after it is dropped, since a program that is cut off never returns. Documents have no prompt:
they are joined, with an `end` after each, and cut into full rows.

A row goes to train or val by a hash of its prompt, or of its document. `datasets` reads; what is
encoded is cached, so a script that was interrupted and is started again goes on from there.
"""

import base64
import contextlib
import functools
import glob
import hashlib
import itertools
import json
import math
import re
import shutil
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import tiktoken
import tiktoken.load

from data.files import atomic_path, progress_bar
from data.processes import cores, in_order

PATTERN = (  # the words of Qwen2; every digit is one
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (  # its ranks, in their owner's SDK
    "https://raw.githubusercontent.com/dashscope/dashscope-sdk-python/"
    "c0d7a0b7174c1b24033be61cdb00dab45da93036/dashscope/resources/qwen.tiktoken"
)
QWEN2_SHA256 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
END, MASK = "<|endoftext|>", "<|mask|>"  # END ends a text and pads it
IM_START, IM_END = "<|im_start|>", "<|im_end|>"
SPECIAL = {  # {kind: ({token: its place after the ids of text}, how many places there are)}
    "plain": ({END: 0, MASK: 1}, 2),
    "dream": ({END: 0, IM_START: 1, IM_END: 2, "<|beginoftext|>": 22, MASK: 23}, 421),
}
READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".txt": "text"}
PIECE = 2000  # rows of a worker's task
FIRST = 1000  # rows that are decoded again, to see what the tokenizer loses
DOCUMENT = 1 << 16  # characters encoded at once: more may overflow tiktoken's stack


# -- the tokenizer ---------------------------------------------------------------------------------
class Tokenizer:
    """Text to ids 0 .. n - 1 and back; the special ids of a kind come after: `end` is n.

    content: of its `file`, which a folder of rows keeps. A special token in the text that
    encode(text) is given is text like any other; decode_text(ids) is given ids below n.
    """

    def __init__(self, file, content, kind, n, encode, decode_text):
        places, count = SPECIAL[kind]
        self.file = file
        self.content = content
        self.kind = kind
        self.encode = encode
        self.decode_text = decode_text
        self.special = {token: n + place for token, place in places.items()}
        self.names = {i: token for token, i in self.special.items()}
        self.end = n
        self.mask = self.special[MASK]
        self.vocab_size = n + count

    def decode(self, ids):
        """The text of all ids; special ones by their name, like <|mask|>, or their number."""
        text = ""
        for is_special, group in itertools.groupby(map(int, ids), lambda i: i >= self.end):
            part = [*group]
            names = [self.names.get(i, f"<|{i}|>") for i in part]
            text += "".join(names) if is_special else self.decode_text(part)
        return text

    def text(self, ids):
        """The text of ids (k,), an array, up to the first end."""
        return self.decode(itertools.takewhile(lambda i: i != self.end, ids.tolist()))


def of_ranks(content, kind):
    """Byte pairs, merged by rank as Qwen2 does it; a line of the file is base64, rank = id."""
    lines = map(bytes.split, content.splitlines())
    ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    has_bytes = all(bytes([i]) in ranks for i in range(256))
    if not has_bytes or sorted(ranks.values()) != [*range(len(ranks))]:
        raise ValueError("expected ranks 0 to n - 1, each once, and all 256 bytes among them")
    bpe = tiktoken.Encoding("own", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    encode = lambda text: bpe.encode_ordinary(unicodedata.normalize("NFC", text))  # noqa: E731
    return Tokenizer("tokenizer.tiktoken", content, kind, len(ranks), encode, bpe.decode)


def of_json(content, kind):
    """A tokenizer.json of Hugging Face; its own special tokens are not used."""
    import tokenizers  # pip install tokenizers

    added = {"added_tokens": []} if kind == "dream" else {}  # whose places they take
    text = json.dumps(json.loads(content) | {"truncation": None, "padding": None} | added)
    library = tokenizers.Tokenizer.from_str(text)
    library.encode_special_tokens = True
    n = max(library.get_vocab().values()) + 1
    encode = lambda text: library.encode(text, add_special_tokens=False).ids  # noqa: E731
    decode = functools.partial(library.decode, skip_special_tokens=False)
    return Tokenizer("tokenizer.json", content, kind, n, encode, decode)


def tokenizer(name, kind="plain"):
    """Of a .tiktoken file, a tokenizer.json or a folder with one, "bytes", or, for "", Qwen2's."""
    if name == "bytes":
        lines = (base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256))
        return of_ranks(b"".join(lines), kind)
    path = Path(name)
    if name and path.is_dir():
        path = path / "tokenizer.json"
    content = path.read_bytes() if name else download()
    try:
        return (of_json if path.suffix == ".json" else of_ranks)(content, kind)
    except Exception as error:  # `tokenizers` raises Exception itself
        raise ValueError(f"{path} is no .tiktoken file or tokenizer.json: {error}") from None


once = functools.cache(tokenizer)  # in a worker


def download():
    """Qwen2's ranks, once, to tiktoken's cache."""
    try:
        return tiktoken.load.read_file_cached(QWEN2, QWEN2_SHA256)
    except (OSError, ValueError) as error:  # no network; another file
        message = "cannot download Qwen2's tokenizer, supply its file with --tokenizer=PATH"
        raise OSError(f"{message}: {error}") from None


def kept(folder):
    """The tokenizer of a folder of rows; SystemExit where there is none."""
    try:
        about = json.loads(Path(folder, "header.json").read_text())["tokenizer"]
        return tokenizer(next(Path(folder).glob("tokenizer.*")), about["kind"])
    except (KeyError, OSError, StopIteration, TypeError, ValueError) as error:
        raise SystemExit(f"{folder} has no tokenizer: {error!r}") from None


# -- the source ------------------------------------------------------------------------------------
def load(source, fields=None, config=None, split="train"):
    """The fields, or all, of .jsonl, .parquet or .txt files, a pattern, or of a set on the hub.

    A .txt has the field `text`: each paragraph is a row.
    """
    import datasets

    print(f"reading {source}", flush=True)
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the error below says it
    reader = READERS.get(Path(source).suffix)
    if not reader and Path(source).exists():
        raise ValueError(f"{source}: expected files of {', '.join(READERS)}")
    try:
        if reader:
            files = [glob.escape(name) for name in sorted(glob.glob(source))]
            if not files:
                raise FileNotFoundError("no such file")
            how = {"sample_by": "paragraph"} if reader == "text" else {}
            rows = datasets.load_dataset(reader, data_files=files, split="train", **how)
        else:
            rows = datasets.load_dataset(source, config, split=split)
        return rows.select_columns(fields or rows.column_names)
    except Exception as error:  # of many kinds; the cause says which line is damaged
        reason = str(error.__cause__ or error) or "no rows"
        where = "" if reader else " from the hub; download its files and name them instead"
        raise OSError(f"cannot read {source}{where}: {reason}") from None


def of(pairs):
    """Prompts and responses, a list, as `load` gives them."""
    import datasets

    prompts, responses = zip(*pairs, strict=True)
    return datasets.Dataset.from_dict({"prompt": prompts, "response": responses})


# -- one row ---------------------------------------------------------------------------------------
def texts(row):
    """The fields of a row: prompt and response, or one text."""
    return tuple(row.values())


def prompt_text(question):
    """The prompt that a model is given, in training and at inference."""
    return lines_of(question).strip("\n") + "\n"  # a drawing may begin with blanks


def lines_of(text):
    """The text with the line ends of Unix, whatever it had."""
    return re.sub("\r\n?", "\n", text)


def cleaned(parts, most=None):
    """Prompt and response, or one text, as they are encoded; or the word why the row is dropped.

    most: characters of each that are kept; so many never fit, and may overflow tiktoken's stack.
    """
    if isinstance(parts, str):
        return parts
    if not all(isinstance(part, str) and part.strip() for part in parts):
        return "unusable"
    if len(parts) == 1:
        return [lines_of(parts[0])]
    prompt, response = parts
    return [prompt_text(prompt)[:most], lines_of(response).strip("\n")[:most]]


def plain(coder, prompt, response):
    """prompt, newline | response"""
    return coder.encode(prompt), coder.encode(response)


def chat(coder, prompt, response):
    """System, user and start of the assistant's turn, as in Qwen2 and Dream | answer, its end."""
    start = coder.special[IM_START]
    end = coder.special[IM_END]
    given = []
    for turn in "system\nYou are a helpful assistant.", "user\n" + prompt.strip("\n"):
        given += [start, *coder.encode(turn), end, *coder.encode("\n")]
    given += [start, *coder.encode("assistant\n")]
    return given, [*coder.encode(response), end]


def document(coder, text):
    """No prompt | the text, its end"""
    piece = f".{{1,{DOCUMENT}}}"
    pieces = re.findall(f"(?s){piece}", text)
    if len(pieces) > 1 and coder.encode("a a") == 2 * coder.encode("a"):  # puts a blank first
        pieces = re.findall(rf"(?s){piece}(?= \S|\Z)|{piece}", text)
        pieces[1:] = [each.removeprefix(" ") for each in pieces[1:]]
    ids = [i for piece in pieces for i in coder.encode(piece)]
    return [], [*ids, coder.end] if ids else []


def encode(coder, parts, form, length):
    """Ids of prompt and response, or the word why the row is dropped; length: with one end."""
    found = cleaned(parts, 256 * length)
    if isinstance(found, str):
        return found
    prompt, response = form(coder, *found)
    if not response:
        return "empty"  # a tokenizer may leave out what it does not know
    if form is not document and len(prompt) + len(response) >= length:
        return "too_long" if len(prompt) < length else "prompt_too_long"
    return prompt, response


def question_key(question):
    """64-bit hash of the question's words, whatever the case, punctuation and white space.

    Where words are at most half of it, as in a drawn puzzle, all that is no white space counts.
    """
    question = question[: 1 << 14]  # to normalise it takes quadratic time at worst
    text = unicodedata.normalize("NFKC", question).casefold()
    words = re.findall(r"\w+", text)
    symbols = "".join(text.split())
    content = " ".join(words) if 2 * sum(map(len, words)) > len(symbols) else symbols
    digest = hashlib.blake2b(content.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def say_what_is_lost(coder, rows):
    """How many rows, as `texts` gives them, say another text once they are decoded."""
    changed = []
    for parts in map(cleaned, rows):
        text = "" if isinstance(parts, str) else "".join(parts)[:DOCUMENT]
        back = coder.decode_text(coder.encode(text))
        if unicodedata.normalize("NFC", back) != unicodedata.normalize("NFC", text):
            changed.append((text, back))
    if changed:
        text, back = (f"{each!r:.80}" for each in min(changed, key=lambda both: len(both[0])))
        print(f"warning: the tokenizer changes {len(changed)} of the first rows: {text} to {back}")
    return len(changed)


# -- all rows --------------------------------------------------------------------------------------
class Folder:
    """The files that text.py reads, in the making: in `<out>.partial`, until `finish` renames it.

    source: where the rows come from, any JSON, for header.json. Raises FileExistsError.
    """

    def __init__(self, out, coder, length, source):
        if not 2 <= length < 1 << 16:
            raise ValueError(f"length={length}: expected 2 to 65,535 tokens")
        self.out = Path(out)
        if self.out.exists():
            raise FileExistsError(f"{out} exists: remove it, or choose another --out")
        self.partial = self.out.with_name(f"{self.out.name}.partial")
        Path(self.partial, "cache").mkdir(parents=True, exist_ok=True)
        for old in self.partial.glob("*.*"):
            old.unlink()
        self.file = self.partial / coder.file
        self.file.write_bytes(coder.content)
        about = {name: getattr(coder, name) for name in ("kind", "vocab_size", "end", "mask")}
        about["checksum"] = hashlib.sha256(coder.content).hexdigest()
        self.header = {"source": source, "length": length, "tokenizer": about}
        self.coder = coder
        self.dropped = Counter()
        self.pieces = {"train": [], "val": []}  # paths in the cache, and which of their rows
        print(f"tokenizer: {coder.vocab_size:,} ids, end and mask included", flush=True)

    def add(self, rows, val, parts_of=texts, form=plain, workers=None, most=math.inf):
        """Encode rows, until `most` are kept; to val go those whose hash, in [0, 1], is below val.

        parts_of(row): prompt and response, or one text, or a word that says why it is dropped.
        Workers import it by name.
        """
        first = map(parts_of, rows.select(range(min(FIRST, len(rows)))))
        self.header["changed_of_first"] = say_what_is_lost(self.coder, first)
        starts = range(0, len(rows), PIECE)
        pieces = (rows.select(range(at, min(at + PIECE, len(rows)))) for at in starts)
        task = functools.partial(encode_piece, self.file, self.header, parts_of, form)
        with contextlib.closing(in_order(task, pieces, workers or cores())) as paths:
            for path in progress_bar(paths, total=len(starts), unit=f"x{PIECE} rows"):
                reasons, places = column(path, "dropped"), column(path, "place")
                self.dropped.update(reasons[reasons != ""].tolist())
                kept = reasons == ""
                kept &= kept.cumsum() <= most
                most -= kept.sum()
                self.pieces["train"].append((path, kept & (places >= val)))
                self.pieces["val"].append((path, kept & (places < val)))
                if not most:
                    break

    def finish(self, joined=False):
        """Write the arrays and header.json; joined: cut all tokens of a split into full rows.

        Says what is in the folder and what was dropped. Raises ValueError if a split is empty.
        """
        counts = {split: self.save(split, joined) for split in self.pieces}
        dropped = ", ".join(f"{n:,} {why}" for why, n in self.dropped.items()) or "none"
        if 0 in counts.values():
            raise ValueError(
                f"rows: {counts}, dropped: {dropped}; expected some in each: give fields of text, "
                "more text, another --length or --val; rows with the same prompt stay together"
            )
        header = self.header | {"splits": counts, "dropped": self.dropped}
        (self.partial / "header.json").write_text(json.dumps(header, indent=1))
        shutil.rmtree(self.partial / "cache")
        self.partial.rename(self.out)
        print(f"dropped: {dropped}\nwritten to {self.out}")

    def save(self, split, joined):
        """Write tokens (T,), starts (N + 1,), prompts (N,) of a split; returns N."""
        pieces = self.pieces[split]
        lengths = (column(path, "length")[rows] for path, rows in pieces)
        prompts = (column(path, "prompt")[rows] for path, rows in pieces)
        starts = np.concatenate([[0], *lengths]).cumsum()
        prompts = np.concatenate([[], *prompts])
        if joined:  # what is left over is lost
            starts = np.arange(0, starts[-1] + 1, self.header["length"])
            prompts = np.zeros(len(starts) - 1)
        if not len(prompts):
            return 0
        ids = np.uint16 if self.coder.vocab_size <= 1 << 16 else np.uint32
        name = f"{self.partial / split}.{{}}.npy".format
        tokens = np.lib.format.open_memmap(name("tokens"), "w+", ids, (int(starts[-1]),))
        at = 0
        for path, rows in pieces:
            part = column(path, "ids")[np.repeat(rows, column(path, "length"))]
            part = part[: len(tokens) - at]
            tokens[at : at + len(part)] = part
            at += len(part)
        np.save(name("starts"), starts)
        np.save(name("prompts"), prompts.astype(np.uint16))
        print(f"{split}: {len(prompts):,} rows, the longest of {np.diff(starts).max()} tokens")
        return len(prompts)


def column(path, name):
    """An array of a piece: ids (T,); length, prompt, place, dropped (n,)."""
    with np.load(path) as piece:
        return piece[name]


def encode_piece(file, header, parts_of, form, piece):
    """A worker's task: the path of the piece, encoded; in the cache, if a run is started again."""
    from datasets.fingerprint import Hasher

    name = Hasher.hash((piece._fingerprint, header))
    path = file.with_name("cache") / f"{name}.npz"
    if not path.exists():
        coder = once(file, header["tokenizer"]["kind"])
        found = [encode_row(coder, parts_of(row), form, header["length"]) for row in piece]
        ids, *columns = zip(*found, strict=True)
        arrays = dict(zip(("prompt", "place", "dropped"), columns, strict=True))
        with atomic_path(path) as partial, partial.open("wb") as opened:
            np.savez(opened, ids=np.concatenate(ids), length=[*map(len, ids)], **arrays)
    return path


def encode_row(coder, parts, form, length):
    """Ids of an example, how many are its prompt's, its place in [0, 1], and "", or why not."""
    found = encode(coder, parts, form, length)
    if isinstance(found, str):
        return np.empty(0, np.uint32), 0, 0.0, found
    prompt, response = found
    place = question_key(parts[0]) / 2**64
    return np.array(prompt + response, np.uint32), len(prompt), place, ""
