"""Shared by the prepare.py of text: encode the rows of a Dataset and write them in order.

`datasets` maps the rows piece by piece and keeps every finished piece in the writer's cache: a
script that is started again reads those, and encodes only the pieces it was interrupted in. The
processes are our own: `Dataset.map`'s hang on SIGTERM and answer Ctrl-C with tracebacks.
"""

import contextlib
import functools
import math
import os
import sys

import numpy as np

from data import corpus, vocabularies
from data.files import progress_bar
from data.processes import cores, in_order

PIECE, CHUNK = 8000, 1000  # rows of a worker's task; rows encoded at once
COLUMNS = dict.fromkeys(("tokens", "lengths", "prompts"), "uint32")
COLUMNS |= {"keys": "uint64", "losses": "uint8", "reasons": "string"}
if not sys.stderr.isatty():  # bars would fill a log file
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
LOSSES = [*corpus.LOSSES]
load_once = functools.cache(vocabularies.open_kept)  # once per worker


def read_tokenizer(name, kind=None):
    """The tokenizer of a name (vocabularies.find), Qwen2's ranks if it is ""; prints its size."""
    encoding = vocabularies.find(name, kind)
    print(f"tokenizer: {name or 'of Qwen2'}, {encoding.vocab_size:,} ids, end and mask included")
    return encoding


def encode_all(writer, rows, pair_of, form, workers=None):
    """Yields Encoded examples and reasons, as corpus.encode returns them, for each chunk of rows.

    pair_of(folder, row) -> question and code, or a word that says why the row is dropped; folder:
    the writer's, with the files that pair_of reads. Workers import it by name.
    """
    encode = functools.partial(encode_rows, writer.partial, writer.header, pair_of, form)
    task = functools.partial(encode_piece, encode, writer.header)
    starts = range(0, len(rows), PIECE)
    pieces = (rows.select(range(at, min(at + PIECE, len(rows)))) for at in starts)
    with contextlib.closing(in_order(task, pieces, workers or cores())) as results:
        for piece in progress_bar(results, total=len(starts), unit=f"x{PIECE} rows"):
            for table in piece.with_format("arrow").iter(1):
                *columns, reasons = (table[name][0].values for name in COLUMNS)
                yield corpus.Encoded(*map(np.asarray, columns)), reasons.to_pylist()


def encode_piece(encode, header, piece):
    """A worker's task: the encoded piece, which is in the cache if an earlier run finished it."""
    from datasets import Features, List, Value, disable_progress_bars
    from datasets.fingerprint import Hasher

    disable_progress_bars()
    features = Features({name: List(Value(kind)) for name, kind in COLUMNS.items()})
    how = {"batched": True, "batch_size": CHUNK, "remove_columns": piece.column_names}
    fingerprint = Hasher.hash((piece._fingerprint, header))
    return piece.map(encode, features=features, new_fingerprint=fingerprint, **how)


def encode_rows(folder, header, pair_of, form, batch):
    """Columns of n rows -> a single row of what corpus.encode returns for them."""
    rows = (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))
    (path,) = folder.glob("tokenizer.*")
    encoding = load_once(path, header["tokenizer"]["kind"])
    length = math.inf if form is corpus.document else header["length"]  # documents are cut later
    encoded, reasons = corpus.encode(encoding, [pair_of(folder, row) for row in rows], length, form)
    return {name: [column] for name, column in zip(COLUMNS, (*encoded, reasons), strict=True)}


def usable(pair):
    """The pair, if both are texts and none is blank, or why it is dropped."""
    is_usable = all(isinstance(text, str) and text.strip() for text in pair)
    return pair if is_usable else "unusable"


def write_rows(writer, chunks, val, most=math.inf, packed=False):
    """Write what `encode_all` yields until `most` examples are kept, make the folder appear.

    A question or a document goes to val or train by its hash, a share `val` to val. packed:
    documents are cut into full rows, and the tokens left over are dropped. Prints what the folder
    contains, what was dropped and what the tokenizer lost. Raises ValueError if a split is empty.
    """
    rest = dict.fromkeys(("train", "val"), np.empty(0, np.uint32))
    read, kept, longest = 0, 0, 0
    first = {}  # {reason or loss: the first row that has it}
    for encoded, reasons in chunks:
        losses = iter(encoded.losses)
        lost = ["" if reason else LOSSES[next(losses)] for reason in reasons]
        count(writer.dropped, reasons, read, first)
        count(writer.lost, lost, read, first)
        room = np.arange(len(encoded.keys)) < most - kept
        in_val = encoded.keys < val * 2.0**64
        for split, rows in (("train", room & ~in_val), ("val", room & in_val)):
            part = encoded.select(rows)
            if packed:
                stream = np.concatenate([rest[split], part.tokens])
                part, rest[split] = corpus.cut(stream, writer.header["length"])
            writer.add(split, part)
        read, kept = read + len(reasons), kept + int(room.sum())
        longest = max(longest, encoded.lengths.max(initial=0))
        if kept == most:
            break
    if packed:
        writer.dropped["tokens_left_over"] = sum(map(len, rest.values()))
    elif kept:
        print(f"the longest row has {longest} tokens, --length is {writer.header['length']}")
    if kept < most < math.inf:
        print(f"there are only {kept:,} examples; {most:,} were asked for")
    finish(writer, read, first)


def count(counts, words, read, first):
    """Count words about rows, "" about most; first {word: the first row that it is about}."""
    for number, word in enumerate(words, start=read + 1):
        if word:
            counts[word] += 1
            first.setdefault(word, number)


def finish(writer, read, first):
    """Make the folder appear; first {reason or loss: the first of the `read` rows that has it}."""
    kept = {split: columns[2].count for split, columns in writer.splits.items()}
    if 0 in kept.values():
        raise ValueError(
            f"{read:,} rows read, {kept} kept, dropped: {described(writer.dropped, first)}; "
            "expected some in each split: name fields of text, a larger --length or another --val, "
            "or give more text; rows with the same prompt go to the same split"
        )
    for name, split in writer.finish()["splits"].items():
        print(f"{name}: {split['examples']:,} examples, {split['tokens']:,} tokens")
    print(f"dropped: {described(writer.dropped, first)}")
    if writer.lost:
        print(f"warning: rows of which the tokenizer loses: {described(writer.lost, first)}")
    print(f"written to {writer.folder}")


def described(counts, first):
    parts = (
        f"{rows:,} {word}" + (f" (first in row {first[word]:,})" if word in first else "")
        for word, rows in counts.items()
    )
    return ", ".join(parts) or "nothing"
