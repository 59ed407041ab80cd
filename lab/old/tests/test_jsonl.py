"""data/jsonl/prepare.py and the task of its folders. Oracles: each row's fate decided by hand,
Hugging Face's library itself, texts put together here."""

import json
from types import SimpleNamespace

import datasets
import huggingface_hub
import numpy as np
import pyarrow.parquet
import pytest
from conftest import HOUSE, evaluate, metrics, run_main, run_script, same, train
from toys import contents, write_lines

from configurator import read_keys
from data import corpus, prepare_rows, sources, vocabularies
from data.corpus import Examples, question_key
from data.jsonl import prepare
from engine.checkpoint import load
from tasks import own_text

PAIRS = [{"ask": f"How much is {i} + {i % 7}?", "say": f"It is {i + i % 7}."} for i in range(300)]
DOCUMENTS = [f"caf\u00e9 number {i}: " + "the cat sat. " * (i % 9) for i in range(200)]
LONG = "".join(f"{i} " for i in range(30_000))  # a document of more characters than any row has
PARAGRAPHS = [f"a{n}\nb{n}\n" for n in range(40)]
BAD = [b"not json", b"{}", b'{"ask": "Why?"}', b'{"ask": " ", "say": "x", "text": " "}']
NO_TEXT = [b'{"ask": "caf\xe9?", "say": "x"}', b'{"ask": "half?", "say": "\\ud800"}', b'{"ask": 3}']
TINY = [
    "--dataset=own_text", "--k_schedule=[(0,16)]", "--batch_size=4", "--max_iters=4",
    "--eval_interval=4", "--test_examples=6", "--eval_policies=['top_k']", "--eval_reveal=8",
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    long = [{"ask": "Why?", "say": "x" * 80}, {"ask": "x" * 80, "say": "y"}]
    lines = [json.dumps(row).encode() for row in [*PAIRS[:9], *long, *PAIRS[9:]]]
    lines[9:9] = [*BAD, b"", *NO_TEXT]
    (folder / "pairs.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))  # a byte order mark
    write_lines(folder / "texts.jsonl", ["{}", *({"text": each} for each in DOCUMENTS)])
    write_lines(folder / "long.jsonl", [{"text": each} for each in (LONG, "c" * 100, "b" * 100)])
    (folder / "paragraphs.txt").write_text("\n \n".join(PARAGRAPHS))
    (folder / "damaged.parquet").write_bytes(b"PAR1")
    (folder / "empty.jsonl").touch()
    return folder


@pytest.fixture(scope="module")
def call(files, tmp_path_factory):
    """Run the script's main with settings; the folder it wrote."""
    names = read_keys((HOUSE / "data" / "jsonl" / "prepare.py").read_text())
    defaults = {name: getattr(prepare, name) for name in names}

    def call(**settings):
        out = tmp_path_factory.mktemp("out") / "tokens"
        given = defaults | {"out": str(out), "length": 64, "val": 0.1, "workers": 1} | settings
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prepare_rows, "PIECE", 96)
            patch.setattr(prepare_rows, "CHUNK", 32)
            return run_main(prepare, **given)

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
        for row, x, is_given in zip(expected, x0, prompt, strict=True):
            response = x[~is_given & (x != x0[0, -1])]
            assert bytes(x[is_given].tolist()).decode() == row["ask"] + "\n"
            assert bytes(response.tolist()).decode() == row["say"]
    header = corpus.read_header(pairs)
    assert header["dropped"] == {"unusable": 7, "too_long": 1, "prompt_too_long": 1}


@pytest.mark.parametrize(
    "name, texts, val",
    [
        ("texts.jsonl", DOCUMENTS, 0.1),
        ("long.jsonl", [LONG, "c" * 100, "b" * 100], 0.6),
        ("paragraphs.txt", PARAGRAPHS, 0.5),
    ],
)
def test_packed_rows_are_the_documents_one_after_another(call, files, name, texts, val):
    folder, left = call(source=str(files / name), text="text", val=val), 0
    for split in ("train", "val"):
        kept = [t for t in texts if (question_key(t) < val * 2.0**64) == (split == "val")]
        stream = [i for t in kept for i in [*t.encode(), 256]]
        x0, prompt = rows(folder, split)
        assert (x0.ravel() == stream[: x0.size]).all() and not prompt.any()
        assert 0 <= len(stream) - x0.size < 64 <= x0.size
        left += len(stream) - x0.size
    assert corpus.read_header(folder)["dropped"]["tokens_left_over"] == left


def test_parquet_and_the_hub_give_the_same_rows(call, monkeypatch, tmp_path):
    fields = {"prompt": "ask", "response": "say"}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(PAIRS), tmp_path / "a.parquet")
    local = contents(call(source=str(tmp_path / "a.parquet"), **fields))

    def load_dataset(path, name, split, revision, streaming=False, cache_dir=None):
        assert (path, name, split, revision) == ("me/set", "main", "test", "abc")
        found = datasets.Dataset.from_list(PAIRS)
        return found.to_iterable_dataset() if streaming else found

    def dataset_info(self, name, revision):
        return SimpleNamespace(sha={"v1": "abc"}[revision])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    fields |= {"source": "me/set", "config": "main", "split": "test"}
    remote = contents(call(revision="v1", **fields))
    header = json.loads(remote.pop("header.json"))  # it names the source
    assert header["source"]["rows"][0]["revision"] == "abc"
    assert local.keys() - remote.keys() == {"header.json"} and remote.items() <= local.items()
    some = call(revision="v1", limit=200, **fields)
    assert sum(len(Examples(some, split)) for split in ("train", "val")) == 200
    with pytest.raises(OSError, match=r"cannot read me/set .*KeyError.*supply it with --source="):
        call(revision="v2", **fields)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"prompt": "ask"}, "expected --prompt=FIELD and --response=FIELD, or --text"),
        ({"prompt": "asks", "response": "say"}, r"has no field 'asks', but ask, say"),
        ({"source": "empty.jsonl", "text": "say"}, "no field 'say', nor any other: is it empty"),
        ({"tokenizer": "none.json", "text": "text"}, "no such file; expected bytes, a .tiktoken"),
        ({"text": "ask", "val": 1e-9}, r"^309 .*'val': 0. kept, .*le .first in row 10.*--val"),
        ({"source": "damaged.parquet", "text": "text"}, r"ed\.parquet: not a whole \.parquet file"),
        ({"source": "pairs.jsonl,c.jsonl", "text": "say"}, "source 'c.jsonl': no such file"),
        ({"source": "*", "text": "say"}, "expected .jsonl, .parquet or .txt files, all of one"),
    ],
)
def test_mistakes_are_named(call, files, tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(files)
    with pytest.raises((ValueError, OSError), match=message):
        call(**{"source": "pairs.jsonl", "out": str(tmp_path / "out")} | settings)
    assert not (tmp_path / "out").exists()


def test_a_file_of_two_patterns_is_read_once(files, monkeypatch):
    monkeypatch.chdir(files)
    for source in ("pairs.jsonl, texts.jsonl", "p*.jsonl,t*.jsonl,./pairs.jsonl"):
        assert [str(file) for file in sources.files(source)] == ["pairs.jsonl", "texts.jsonl"]


# -- tokenizers ------------------------------------------------------------------------------------
def test_characters_of_rows_are_those_of_the_text():
    """Of documents cut into rows; the library's decoder strips the first space of what it gets."""
    tokenizers = pytest.importorskip("tokenizers")
    texts = ["the cat sat on the cats", "cats on the cat", "a cat"]
    words = {f"\u2581{word}": i for i, word in enumerate(("the", "cat", "sat", "on", "cats", "a"))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="\u2581a"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    encoding = vocabularies.HuggingFace(made.to_str().encode())
    stream = [i for text in texts for i in [*encoding.encode(text), encoding.end]]
    for length in (2, 3, 5, 7):
        x0 = np.array(stream + [encoding.end] * (-len(stream) % length)).reshape(-1, length)
        assert encoding.characters(x0).sum() == sum(map(len, texts))


def test_a_tokenizer_of_hugging_face(call, files, tmp_path):
    """Byte-level BPE without a mask or an end, made by the library."""
    made = pytest.importorskip("tokenizers").ByteLevelBPETokenizer()
    made.train_from_iterator(DOCUMENTS, 400, special_tokens=["<s>"], show_progress=False)
    made.save(str(tmp_path / "tokenizer.json"))
    folder = call(source=str(files / "texts.jsonl"), text="text", tokenizer=str(tmp_path))
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
    path, unusable = tmp_path / "a.json", r"not a usable tokenizer.json: ids beyond 2\^31, or"
    path.write_text("{}")
    with pytest.raises(ValueError, match=rf"^{path}: .*not a readable tokenizer.json.*; expected"):
        vocabularies.find(path)
    for last, dropout in ((1 << 31, None), (1, 0.5)):
        model = {"type": "BPE", "vocab": {"a": 0, "b": last}, "merges": [], "dropout": dropout}
        path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
        with pytest.raises(ValueError, match=unusable):
            vocabularies.find(path)


# -- training, sampling ----------------------------------------------------------------------------
def test_the_loss_alone_where_nothing_judges(runs):
    for name in ("pairs", "packed"):
        last = metrics(runs / name)[-1]
        assert last["accuracy"] == {} and last["examples"] == 0 and 0 < last["val_loss"] < 9


def test_sampling(runs):
    flags = f"--out_dir={runs / 'pairs'}", "--device=cpu", "--reveal=40"
    printed = run_script("sample.py", *flags, "--prompt=How much is 2 + 2?", "--watch", "--delay=0")
    assert printed.startswith("How much is 2 + 2?\n\u2591\u2591") and "step 2 of 2" in printed
    assert run_script("sample.py", *flags).startswith("How much is ")  # a held-out one
    printed = run_script("sample.py", *flags, f"--prompt={'x' * 70}")
    assert "# the prompt leaves no room in 64 tokens" in printed
    flags = f"--out_dir={runs / 'packed'}", "--device=cpu", "--reveal=32"
    printed = run_script("sample.py", *flags)
    assert "32.00 tokens per step, 2 forward passes" in printed and "not judged" not in printed
    assert run_script("sample.py", *flags, "--prompt=The cat ").startswith("The cat ")


def test_packed_text_has_ends_within_rows_and_no_judge(packed):
    task = own_text.OwnText(packed, "", 1)
    assert task.test.show(np.array([*b"one", 256, *b"two"])) == "one\n\ntwo"
    assert not task.padding(np.array([[1, 256, 2, 256, 256]])).any()
    with pytest.raises(ValueError, match="holds text without prompts"):
        task.held_out("exact")


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
    """The held-out problems under a judge.py of that body."""

    def make(body):
        if body:
            (tmp_path / "judge.py").write_text(body)
        return own_text.OwnText(pairs, str(tmp_path / "judge.py"), 5).test

    return make


def kinds(test, texts):
    return [record["kind"] for record in test.judge_texts(texts, range(len(texts)))]


def test_exact_match(pairs):
    test = own_text.OwnText(pairs, "exact", 5).test
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
        ("", "no such file; expected exact, or a file"),
        ("def check(): pass", "the file has no function judge; expected exact, or a file"),
        (JUDGE + "raise KeyError('x')", r"judge.py, line 2: KeyError: 'x', given the held-out"),
        ("while True: pass", r"judge.py, line 1: Late: no answer within 1 seconds"),
        (JUDGE + "import sys; sys.exit(0)", r"judge.py, line 2: SystemExit: 0, given the held"),
        (JUDGE + "raise GeneratorExit", r"judge.py, line 2: GeneratorExit, given the held"),
        (JUDGE + SWALLOWS, r"judge.py, line \d: Late: no answer within 1 seconds, given the held"),
    ],
)
def test_judges_that_are_none(judge, body, message, monkeypatch):
    monkeypatch.setattr(own_text, "SECONDS", 1)
    with pytest.raises(ValueError, match=message):
        judge(body)


def test_a_judged_run(pairs, tmp_path, capsys):
    (tmp_path / "judge.py").write_text(JUDGE + "return len(response) > 0")
    flags = f"--data_dir={pairs}", f"--eval_judge={tmp_path}/judge.py"
    printed = train(tmp_path / "run", *TINY, *flags)
    last = metrics(tmp_path / "run")[-1]
    parts = "train.py", f"--out_dir={tmp_path}/parts", "--init_from=resume", "--max_iters=4"
    train(tmp_path / "parts", *TINY, *flags, "--max_iters=2")
    with pytest.raises(SystemExit, match="2"):
        run_script(*parts)
    assert "which is not executed: add --eval_judge=FILE" in capsys.readouterr().err
    run_script(*parts, flags[1])
    assert same(*(load(tmp_path / name / "checkpoint.pt") for name in ("run", "parts")))
    assert last["examples"] == 6 and "of 6 held-out problems solved" in printed
    row = evaluate(tmp_path / "run", "--problems=exact", "--reveal=40", "--examples=3")
    assert "0.0%" in row and "3 wrong" in row
    ours = f"--problems={tmp_path}/judge.py"
    (tmp_path / "judge.py").write_text(JUDGE + "return True")
    assert "100.0%" in evaluate(tmp_path / "run", ours)
    # The judge that a run names, perhaps a stranger's, is not executed.
    (tmp_path / "judge.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    run_script("sample.py", f"--out_dir={tmp_path}/run")
    (tmp_path / "exact.py").write_text("eval_judge = 'exact'")
    run_script(*parts, str(tmp_path / "exact.py"))
    with pytest.raises(SystemExit, match="this run's texts have no judge"):
        evaluate(tmp_path / "run")
    assert not (tmp_path / "executed").exists()
