"""Shared by the prepare.py of text: encode rows in several processes and write them in order."""

import contextlib
import functools
import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np

from data import corpus, files, sources, tokenizer, vocabularies
from data.processes import cores, in_order
from engine.files import progress_bar

CHUNK, COMMIT = 1024, 20  # rows of a worker's task; tasks between commits
SEEN = 1 << 24  # tokens of which the share of unknown ones is taken
CACHE = Path(__file__).parent  # where Qwen2's ranks are kept

load_once = functools.cache(vocabularies.open_kept)  # once per worker


def read_ranks(path, kind):
    """The tokenizer of a file or folder, or the hub's Qwen2 if path is ""; prints which."""
    if not path:
        with sources.by_hand("Qwen2's ranks", "--tokenizer=PATH"):
            path = tokenizer.download(CACHE)
    encoding = tokenizer.load(path, kind)
    whose = "Qwen2's" if encoding.checksum == tokenizer.QWEN2 else "not Qwen2's"
    print(f"tokenizer: {encoding.end:,} ranks, {whose}; mask {encoding.mask}")
    return encoding


def encode_all(writer, rows, pair_of, form, workers=None):
    """Results of `encode_rows`, in order, for the rows that no earlier run has committed.

    pair_of is sent to the workers, so it must be a module's top-level function.
    """
    read = (writer.progress or (0,))[0]
    task = functools.partial(encode_rows, writer.partial, writer.header, pair_of, form)
    yield from in_order(task, chunks(itertools.islice(rows, read, None), CHUNK), workers or cores())


def chunks(rows, size):
    rows = iter(rows)
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def encode_rows(folder, header, pair_of, form, rows):
    """A worker's task: rows -> how many, corpus.Encoded, Counter of what was dropped and why.

    pair_of(folder, row) -> question and code, or a word that says why the row is dropped; folder:
    the writer's, with the files that pair_of reads. form: as in corpus.encode.
    """
    found = [checked(pair_of(folder, row)) for row in rows]
    pairs = [each for each in found if not isinstance(each, str)]
    dropped = Counter(each for each in found if isinstance(each, str))
    kind = header["tokenizer"]["kind"]
    encoding = load_once(folder / vocabularies.file_of(kind), kind)
    longest = math.inf if form is corpus.document else header["length"]  # documents are cut later
    encoded, too_long = corpus.encode(encoding, pairs, longest, form)
    first = files.brief(rows[0]) if dropped["unusable"] == len(rows) else None
    return len(rows), encoded, dropped + too_long, first


def checked(found):
    """What pair_of returned; of texts that are not valid UTF-8, the word for that."""
    if isinstance(found, str) or all(map(sources.is_text, found)):
        return found
    return "not_utf8"


def usable(pair):
    """Whether all are texts and none is blank."""
    return all(isinstance(text, str) and text.strip() for text in pair)


def write_rows(writer, results, val, most=math.inf, total=None):
    """Write what `encode_all` yields until `most` examples are kept; returns how many were kept.

    A question goes to val or train by its hash, a share `val` to val. total: of the progress bar.
    Raises ValueError if no row of the first task is usable.
    """
    read, kept = writer.progress or (0, 0)
    with (
        contextlib.closing(results),
        progress_bar(total=total, initial=kept, unit=" examples") as bar,
    ):
        for number, (count, encoded, dropped, first) in enumerate(results, 1):
            check_first(read, count, first)
            room = np.arange(len(encoded.keys)) < most - kept
            in_val = encoded.keys < val * 2.0**64
            writer.add("train", encoded.select(room & ~in_val))
            writer.add("val", encoded.select(room & in_val))
            writer.dropped.update(dropped)
            read, kept = read + count, kept + int(room.sum())
            bar.update(int(room.sum()))
            if kept == most:
                break
            if number % COMMIT == 0:
                writer.commit((read, kept))
    writer.progress = read, kept
    return kept


def check_first(read, count, first):
    """Raise ValueError if no row of the first task is usable."""
    if read == 0 and first:
        raise ValueError(
            f"the first {count} rows have no text in the fields: expected text in each, but row 1 "
            f"has {first} (see --help)"
        )


def write_packed(writer, results, val, total=None):
    """Write the documents that `encode_all` yields as full rows; left-over tokens are dropped.

    A document goes to val or train by its hash. total: of the progress bar, in documents.
    Raises ValueError if no row of the first task is usable.
    """
    read, rest = writer.progress or (0, {"train": (), "val": ()})
    packers = {split: corpus.Packer(writer.header["length"], ids) for split, ids in rest.items()}
    with (
        contextlib.closing(results),
        progress_bar(total=total, initial=read, unit=" documents") as bar,
    ):
        for number, (count, encoded, dropped, first) in enumerate(results, 1):
            check_first(read, count, first)
            in_val = encoded.keys < val * 2.0**64
            for split, rows in (("train", ~in_val), ("val", in_val)):
                writer.add(split, packers[split].rows(encoded.select(rows).tokens))
            writer.dropped.update(dropped)
            read += count
            bar.update(count)
            if number % COMMIT == 0:
                rest = {split: packer.rest.tolist() for split, packer in packers.items()}
                writer.commit((read, rest))
    writer.dropped["tokens_left_over"] += sum(len(packer.rest) for packer in packers.values())
    writer.progress = read, None


def report_too_long(writer):
    """Print how many rows did not fit, if more than a tenth."""
    long = writer.dropped["too_long"] + writer.dropped["prompt_too_long"]
    if long and long > 0.1 * (rows := writer.progress[0]):
        print(
            f"warning: {long:,} of {rows:,} rows do not fit into --length={writer.header['length']}"
            " tokens: give more, or a --tokenizer whose tokens are longer"
        )


def report_unknown(folder):
    """Print the share of the tokenizer's unknown token in the training text, if above 1 %."""
    unknown = getattr(corpus.load_tokenizer(folder), "unknown", None)
    tokens = np.load(folder / "train.tokens.npy", mmap_mode="r")[:SEEN]
    if unknown is not None and (share := np.mean(tokens == unknown)) > 0.01:
        print(f"warning: {share:.1%} of the training text is the tokenizer's unknown token")


def finish(writer):
    """Make the folder appear, and print what it contains."""
    dropped = ", ".join(f"{count:,} {why}" for why, count in writer.dropped.items()) or "nothing"
    kept = {name: split.columns["prompts"].count for name, split in writer.splits.items()}
    if 0 in kept.values():
        rows = ", ".join(f"{count:,} to {name}" for name, count in kept.items())
        raise ValueError(
            f"{writer.progress[0]:,} rows read, {rows}, dropped: {dropped}; expected some in each "
            "split: change --length or --val, or give more text"
        )
    header = writer.finish()
    for name, split in header["splits"].items():
        repeated = split["examples"] - split["questions"]
        print(
            f"{name}: {split['examples']:,} examples, {split['tokens']:,} tokens, the longest has "
            f"{split['longest']}; {repeated:,} repeat a question"
        )
    print("dropped:", dropped)
    report_too_long(writer)
    report_unknown(writer.folder)
    print(f"written to {writer.folder}")
