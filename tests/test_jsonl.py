"""data/jsonl/prepare.py and the task of its folders. Oracles: each row's fate decided by hand,
Hugging Face's library itself, texts put together here."""

import json
import re
import sys

import numpy as np
import pytest
from conftest import ROOT, evaluate, metrics, run_script, train
from toys import contents, write_lines

from configurator import read_keys
from data import corpus, prepare_rows, sources, vocabularies
from data.corpus import Examples, question_key
from data.jsonl import prepare
from tasks import own_text

PAIRS = [{"ask": f"How much is {i} + {i % 7}?", "say": f"It is {i + i % 7}."} for i in range(300)]
DOCUMENTS = [f"caf\u00e9 number {i}: " + "the cat sat. " * (i % 9) for i in range(200)]
BAD = ["not json", "{}", '{"ask": "Why?"}', '{"ask": " ", "say": "x", "text": " "}']
TINY = [
    "--dataset=own_text", "--k_schedule=[(0,16)]", "--batch_size=4", "--max_iters=4",
    "--eval_interval=4", "--test_examples=6", "--eval_policies=['top_k']", "--eval_reveal=8",
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    long = {"ask": "Why?", "say": "x" * 80}
    longer = {"ask": "x" * 80, "say": "y"}
    write_lines(folder / "pairs.jsonl", [*PAIRS[:9], *BAD, long, longer, *PAIRS[9:]])
    write_lines(folder / "texts.jsonl", [*BAD[:3], *({"text": each} for each in DOCUMENTS)])
    return folder


@pytest.fixture(scope="module")
def call(files, tmp_path_factory):
    """Run the script's main with settings; the folder it wrote."""
    script = (ROOT / "data" / "jsonl" / "prepare.py").read_text()
    defaults = {name: getattr(prepare, name) for name in read_keys(script)}

    def call(**settings):
        out = tmp_path_factory.mktemp("out") / "tokens"
        given = defaults | {"out": str(out), "length": 64, "val": 0.1, "workers": 1} | settings
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prepare_rows, "PIECE", 96)
            patch.setattr(prepare_rows, "CHUNK", 32)
            for name, value in given.items():
                patch.setattr(prepare, name, value)
            prepare.main()
        return type(out)(given["out"])

    return call


@pytest.fixture(scope="module")
def pairs(call, files):
    return call(source=str(files / "pairs.jsonl"), prompt="ask", response="say")


@pytest.fixture(scope="module")
def packed(call, files):
    return call(source=str(files / "texts.jsonl"), text="text")


@pytest.fixture(scope="module")
def runs(pairs, packed, tmp_path_factory):
    """Folders of a run each on pairs and on packed text."""
    out = tmp_path_factory.mktemp("runs")
    for name, folder in (("pairs", pairs), ("packed", packed)):
        train(out / name, *TINY, f"--data_dir={folder}")
    return out


def dropped(folder):
    return corpus.read_header(folder)["dropped"]


def rows(folder, split):
    examples = Examples(folder, split)
    return examples[np.arange(len(examples))]


# -- preparing -------------------------------------------------------------------------------------
def test_every_pair_is_where_it_belongs(pairs):
    held_out = {row["ask"] for row in PAIRS if question_key(row["ask"]) < 0.1 * 2**64}
    assert 10 < len(held_out) < 60
    for split in ("train", "val"):
        expected = [row for row in PAIRS if (row["ask"] in held_out) == (split == "val")]
        x0, prompt = rows(pairs, split)
        end = x0[0, -1]
        found = [bytes(row[row != end].tolist()).decode() for row in x0]
        assert found == [f"{row['ask']}\n{row['say']}" for row in expected]
        given = [bytes(row[ask].tolist()).decode() for row, ask in zip(x0, prompt, strict=True)]
        assert given == [row["ask"] + "\n" for row in expected]
    assert dropped(pairs) == {"unusable": 4, "too_long": 1, "prompt_too_long": 1}


def test_packed_rows_are_the_documents_one_after_another(packed):
    for split in ("train", "val"):
        kept = [t for t in DOCUMENTS if (question_key(t) < 0.1 * 2**64) == (split == "val")]
        stream = [i for t in kept for i in [*t.encode(), 256]]
        x0, prompt = rows(packed, split)
        assert x0.ravel().tolist() == stream[: x0.size] and not prompt.any()
        assert 0 <= len(stream) - x0.size < 64 < x0.size
    total = sum(len(t.encode()) + 1 for t in DOCUMENTS)
    kept = sum(rows(packed, split)[0].size for split in ("train", "val"))
    assert dropped(packed) == {"unusable": 3, "tokens_left_over": total - kept}


def test_a_long_document(call, tmp_path):
    text = "".join(f"{i} " for i in range(30_000))
    texts = [text, "c" * 100, "b" * 100]  # of these, b's alone go to train
    file = write_lines(tmp_path / "one.jsonl", [{"text": each} for each in texts])
    folder = call(source=str(file), text="text", val=0.6)
    found = rows(folder, "val")[0].ravel()
    same = bytes(found[: len(text)].tolist()).decode() == text  # not to be shown: it is long
    assert same and found[len(text)] == 256


def test_parquet_and_the_hub_give_the_same_rows(call, files, monkeypatch, tmp_path):
    datasets, hub = pytest.importorskip("datasets"), pytest.importorskip("huggingface_hub")
    import pyarrow.parquet

    fields = {"prompt": "ask", "response": "say"}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(PAIRS), tmp_path / "a.parquet")
    local = contents(call(source=str(tmp_path / "a.parquet"), **fields))

    def load_dataset(path, name, split, revision, streaming=False, cache_dir=None):
        assert (path, name, split, revision) == ("me/set", "main", "test", "abc")
        found = datasets.Dataset.from_list(PAIRS)
        return found.to_iterable_dataset() if streaming else found

    class HfApi:
        def dataset_info(self, name, revision):
            return hub.hf_api.DatasetInfo(id=name, sha={"v1": "abc"}[revision], tags=[])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "HfApi", HfApi)
    fields["revision"] = "v1"
    remote = contents(call(source="me/set", config="main", split="test", **fields))
    assert json.loads(remote["header.json"])["source"]["rows"][0]["revision"] == "abc"
    for found in (local, remote):
        del found["header.json"]  # it names the source
    assert local == remote
    call(source="me/set", config="main", split="test", limit=200, **fields)
    monkeypatch.setattr(HfApi, "dataset_info", lambda *_, **__: 1 / 0)
    with pytest.raises(
        OSError, match=r"cannot read me/set from the hub .*supply it with --source="
    ):
        call(source="me/set", **fields)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"prompt": "ask"}, "expected --prompt=FIELD and --response=FIELD, or --text"),
        ({"prompt": "asks", "response": "say"}, r"has no field 'asks', but ask, say"),
        ({"tokenizer": "none.json", "text": "text"}, "no such file; expected bytes, a .tiktoken"),
    ],
)
def test_mistakes_are_named(call, files, settings, message):
    with pytest.raises((ValueError, OSError), match=message):
        call(**{"source": str(files / "pairs.jsonl")} | settings)


@pytest.mark.parametrize(
    "source, expected",
    [
        ("a.jsonl, b.jsonl", ["a.jsonl", "b.jsonl"]),
        ("?.jsonl,b.jsonl,./a.jsonl", ["a.jsonl", "b.jsonl"]),
        ("a.jsonl,c.jsonl", "source 'c.jsonl': no such file"),
        ("*", "expected .jsonl, .parquet or .txt files, all of one kind, found a.jsonl"),
    ],
)
def test_the_files_of_a_source(source, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl", "x.txt"):
        (tmp_path / name).touch()
    if isinstance(expected, list):
        assert [str(file) for file in sources.files(source)] == expected
    else:
        with pytest.raises(ValueError, match=re.escape(expected)):
            sources.files(source)


def test_what_is_no_text_is_dropped_and_a_byte_order_mark_is_not(call, tmp_path, capsys):
    lines = [json.dumps(row).encode() for row in PAIRS]
    lines[5:5] = [b'{"ask": "caf\xe9?", "say": "yes"}', b'{"ask": "half?", "say": "\\ud800"}']
    lines[9:9] = [b'{"ask": 3, "say": "x"}', b"not JSON", b""]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    folder = call(source=str(tmp_path / "a.jsonl"), prompt="ask", response="say")
    assert dropped(folder) == {"unusable": 4}
    assert "dropped: 4 unusable (first in row 6)" in capsys.readouterr().out
    assert sum(len(Examples(folder, split)) for split in ("train", "val")) == len(PAIRS)


def test_a_split_without_rows_is_refused(call, files, tmp_path):
    settings = {"source": str(files / "pairs.jsonl"), "out": str(tmp_path / "out"), "text": "ask"}
    with pytest.raises(ValueError, match=r"^306 rows read, .*'val': 0. kept, dropped: \d.*--val"):
        call(**settings, val=1e-9)
    assert not (tmp_path / "out").exists()


def test_each_paragraph_of_a_text_file_is_a_document(call, tmp_path):
    texts = [f"a{n}\nb{n}\n" for n in range(40)]
    (tmp_path / "a.txt").write_text("\n \n".join(texts))
    lines = write_lines(tmp_path / "a.jsonl", [{"text": each} for each in texts])
    found, expected = (
        rows(call(source=str(file), text="text", val=0.5, length=9), "train")[0]
        for file in (tmp_path / "a.txt", lines)
    )
    assert len(expected) > 5 and (found == expected).all()


def test_a_damaged_parquet_file_is_named(call, tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"a\.parquet: not a whole \.parquet file"):
        call(source=str(tmp_path / "a.parquet"), text="text")


# -- tokenizers ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def library_file(tmp_path_factory):
    """A tokenizer.json of byte-level BPE without a mask or an end, made by the library."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(DOCUMENTS, trainer)
    path = tmp_path_factory.mktemp("library") / "tokenizer.json"
    made.save(str(path))
    return path, made


@pytest.mark.parametrize("kind", ["words with their space", "characters"])
def test_characters_of_rows_are_those_of_the_text(kind):
    """Of documents cut into rows; the library's decoder strips the first space of what it gets."""
    texts = ["the cat sat on the cats", "cats on the cat", "a cat"]
    if kind == "characters":
        encoding = vocabularies.Characters(sorted(set("".join(texts))))
    else:
        tokenizers = pytest.importorskip("tokenizers")
        words = {
            f"\u2581{word}": i for i, word in enumerate(["the", "cat", "sat", "on", "cats", "a"])
        }
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="\u2581a"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        made.decoder = tokenizers.decoders.Metaspace()
        encoding = vocabularies.HuggingFace(made.to_str().encode())
    for length in (2, 3, 5, 7):
        stream = [i for text in texts for i in [*encoding.encode(text), encoding.end]]
        stream += [encoding.end] * (-len(stream) % length)
        x0 = np.array(stream).reshape(-1, length)
        assert encoding.characters(x0).sum() == sum(map(len, texts))


def test_a_tokenizer_of_hugging_face(call, files, library_file):
    path, made = library_file
    folder = call(source=str(files / "texts.jsonl"), text="text", tokenizer=str(path.parent))
    encoding, n = corpus.load_tokenizer(folder), made.get_vocab_size()
    assert (encoding.end, encoding.mask, encoding.vocab_size) == (n, n + 1, n + 2)
    kept = [text for text in DOCUMENTS if question_key(text) >= 0.1 * 2**64]
    stream = [i for text in kept for i in [*made.encode(text).ids, n]]
    x0, _ = rows(folder, "train")
    assert x0.ravel().tolist() == stream[: x0.size]
    whole = encoding.decode(stream[: x0.size])
    assert "<|endoftext|>".join(kept).startswith(whole.removesuffix("<|endoftext|>")[:-9])
    assert abs(encoding.characters(x0).sum() - len(whole.replace("<|endoftext|>", ""))) <= len(x0)
    assert encoding.encode("<s>") != [made.token_to_id("<s>")], "in a text it is text"
    with pytest.raises(ValueError, match="must be 0 to"):
        encoding.decode([n + 2])
    ids = encoding.encode("caf\u00e9 \U0001f600!")  # letters of several bytes, each a token here
    pieces = encoding.decode_each(ids)
    assert len(pieces) == len(ids) and "" in pieces and "".join(pieces) == encoding.decode(ids)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


def test_a_tokenizer_that_is_none_is_named(tmp_path):
    pytest.importorskip("tokenizers")
    path = tmp_path / "a.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=rf"^{path}: .*not a readable tokenizer.json.*; expected"):
        vocabularies.find(path)
    for words, dropout in (({"a": 0, "b": 1 << 31}, None), ({"a": 0, "b": 1}, 0.5)):
        model = {"type": "BPE", "vocab": words, "merges": [], "dropout": dropout}
        path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
        with pytest.raises(ValueError, match=r"not a usable tokenizer.json: ids beyond 2\^31, or"):
            vocabularies.find(path)


# -- training, sampling ----------------------------------------------------------------------------
def test_the_loss_alone_where_nothing_judges(runs):
    for name in ("pairs", "packed"):
        last = metrics(runs / name)[-1]
        assert last["accuracy"] == {} and last["examples"] == 0 and 0 < last["val_loss"] < 9
        with pytest.raises(SystemExit, match="this run's texts have no judge"):
            evaluate(runs / name)


def test_sampling_by_prompt(runs):
    flags = f"--out_dir={runs / 'pairs'}", "--device=cpu", "--reveal=40"
    printed = run_script("sample.py", *flags, "--prompt=How much is 2 + 2?", "--watch", "--delay=0")
    assert printed.startswith("How much is 2 + 2?\n\u2591\u2591") and "step 2 of 2" in printed
    assert run_script("sample.py", *flags).startswith("How much is ")  # a held-out one
    printed = run_script("sample.py", *flags, f"--prompt={'x' * 70}")
    assert "# the prompt leaves no room in 64 tokens" in printed


def test_sampling_text_without_a_prompt(runs):
    flags = f"--out_dir={runs / 'packed'}", "--device=cpu", "--reveal=32"
    printed = run_script("sample.py", *flags)
    assert "32.00 tokens per step, 2 forward passes" in printed and "not judged" not in printed
    assert run_script("sample.py", *flags, "--prompt=The cat ").startswith("The cat ")


def test_an_end_within_a_row_is_a_blank_line(packed):
    task = own_text.OwnText(packed, "", 1)
    tokens = np.array([*b"one", 256, *b"two"])
    assert task.test.show(tokens) == "one\n\ntwo"
    assert not task.padding(np.array([[1, 256, 2, 256, 256]])).any()


def test_bits_per_character(runs, packed):
    """Nats over the characters that the held-out rows spell, by Python's own count."""
    printed = evaluate(runs / "packed", "--nelbo", "--masks=2")
    found = json.loads((runs / "packed" / "nelbo.json").read_text())
    x0, _ = rows(packed, "val")
    characters = len(bytes(i for i in x0.ravel().tolist() if i < 256).decode(errors="ignore"))
    expected = found["per_token"] * x0.size / characters / np.log(2)
    assert found["bits_per_character"] == pytest.approx(expected) and characters < x0.size
    assert "bits per character" in printed and found["per_token"] > 1
    assert "bits" not in evaluate(runs / "pairs", "--nelbo", "--masks=1", "--examples=3")
    with pytest.raises(SystemExit, match=r"has the splits .'train', 'val'., not 'tests'"):
        evaluate(runs / "packed", "--nelbo", "--problems=tests")


# -- judges ----------------------------------------------------------------------------------------
JUDGE = "def judge(prompt, response, answer):\n    "
SWALLOWS = "import time\n    while True:\n     try: time.sleep(9)\n     except Exception: pass"


@pytest.fixture
def judge(tmp_path, pairs):
    """The held-out problems under a judge.py of that body; it may be `exact`."""

    def make(body):
        name = body
        if body != "exact":
            (tmp_path / "judge.py").write_text(body)
            name = str(tmp_path / "judge.py")
        return own_text.OwnText(pairs, name, 5).test

    return make


def kinds(test, texts):
    return [record["kind"] for record in test.judge_texts(texts, range(len(texts)))]


def test_exact_match(judge, pairs):
    test = judge("exact")
    answers = [item.answer for item in test.problems]
    assert answers[0].startswith("It is ") and test.problems[0].prompt.startswith("How much is ")
    assert kinds(test, [f" {answers[0]}\n", answers[1] + "0", ""]) == ["correct", "wrong", "wrong"]
    x0, prompt = Examples(pairs, "val")[np.arange(5)]
    assert {each["kind"] for each in test.judge(x0, np.arange(5))} == {"correct"}
    x, hidden = test[np.arange(5)]
    assert (hidden == ~prompt).all() and (x[prompt] == x0[prompt]).all()
    assert (x[hidden] == x0.max() + 1).all(), "no answer is in what the model sees"


def test_a_judge_of_ones_own(judge, capsys):
    body = "print(prompt); return response == answer or (1 / len(response) < 0.5 and 'too short')"
    test = judge(JUDGE + body)
    assert "How much is" in capsys.readouterr().out
    right = test.problems[0].answer
    assert kinds(test, [right, "abc", "a", ""]) == ["correct", "too short", "wrong", "judge_failed"]
    said = capsys.readouterr().err
    assert "judge.py, line 2: ZeroDivisionError" in said and "counts as not solved" in said


@pytest.mark.parametrize(
    "body, message",
    [
        ("def check(): pass", "the file has no function judge; expected exact, or a file"),
        (JUDGE + "raise KeyError('x')", r"judge.py, line 2: KeyError: 'x', given the held-out"),
        ("while True: pass", r"judge.py, line 1: Late: no answer within 1 seconds"),
        (JUDGE + "import sys; sys.exit(0)", r"judge.py, line 2: SystemExit: 0, given the held"),
        (JUDGE + SWALLOWS, r"judge.py, line \d: Late: no answer within 1 seconds, given the held"),
    ],
)
def test_judges_that_are_none(judge, body, message, monkeypatch):
    monkeypatch.setattr(own_text, "SECONDS", 1)
    with pytest.raises(ValueError, match=message):
        judge(body)


def test_a_judged_run(pairs, packed, tmp_path):
    (tmp_path / "judge.py").write_text(JUDGE + "return len(response) > 0")
    flags = [*TINY, f"--data_dir={pairs}"]
    printed = train(tmp_path / "run", *flags, f"--eval_judge={tmp_path}/judge.py")
    last = metrics(tmp_path / "run")[-1]
    assert last["examples"] == 6 and "of 6 held-out problems solved" in printed
    row = evaluate(tmp_path / "run", "--problems=exact", "--reveal=40", "--examples=3")
    assert "0.0%" in row and "3 wrong" in row
    ours = f"--problems={tmp_path}/judge.py"
    (tmp_path / "judge.py").write_text(JUDGE + "return True")
    assert "100.0%" in evaluate(tmp_path / "run", ours)
    (tmp_path / "help.py").write_text("solved = False")
    (tmp_path / "judge.py").write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{JUDGE}"
                                       "from help import solved; return solved")  # fmt: skip
    assert evaluate(tmp_path / "run", ours).startswith("0.0%")
    (tmp_path / "help.py").write_text("solved = 1 > 0")
    del sys.modules["help"]
    assert "100.0%" in evaluate(tmp_path / "run", ours)
    # The judge that a run names, perhaps a stranger's, is not executed.
    (tmp_path / "judge.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    run_script("sample.py", f"--out_dir={tmp_path}/run")
    with pytest.raises(SystemExit, match="this run's texts have no judge"):
        evaluate(tmp_path / "run")
    assert not (tmp_path / "executed").exists()
    (tmp_path / "judge.py").unlink()
    for words, more in (
        ("no such file; expected exact", flags),
        ("holds text without prompts", [*TINY, f"--data_dir={packed}"]),
    ):
        with pytest.raises(SystemExit, match=words):
            train(tmp_path / "other", *more, f"--eval_judge={tmp_path}/judge.py")
