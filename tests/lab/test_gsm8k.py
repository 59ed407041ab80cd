"""lab/gsm8k.py: what stands for a number, verdicts, rows of two sources."""

import json
import shutil
from fractions import Fraction

import numpy as np
import pytest
from conftest import ROOT

from lab import gsm8k
from lab.gsm8k import correct, load, number
from lab.sandbox import Outcome

WEIGHTS = ROOT / "results/weights/gsm_mini"


@pytest.mark.parametrize(
    "value, expected",
    [
        (7, 7), (-2.5, Fraction(-5, 2)), ("1,234.50", Fraction(2469, 2)), ("$1,000,000", 10**6),
        ("50%", 50), ("50 %", 50), ("3/4", Fraction(3, 4)), ("-3/4", Fraction(-3, 4)), (" 12 ", 12),
        ("1.5e3", 1500), (".5", Fraction(1, 2)), ("5.", 5), ("- $ 3", -3), ("$-5", -5),
        (True, None), (None, None), (float("nan"), None), (float("inf"), None), (1j, None),
        ([7], None), (b"7", None), ("", None), (".", None), ("seven", None),
        ("1,23", None), ("1/0", None), ("7 apples", None), ("1e9999", None), ("9" * 1000, None),
        ("\u22125", -5), ("5$", 5), ("5 $", 5), ("12\u00a0000", 12000),
        ("1_000", None), ("²", None), ("1 2", None), ("$" + " " * 30_000 + "x", None),
        (" \t-\n$  3 ", -3), ("1" + "\t" * 30_000 + "%", 1), ("- " * 15_000, None),
    ],
)  # fmt: skip
def test_what_stands_for_a_number(value, expected):
    assert number(value) == expected


def test_equal_within_a_thousandth_and_without_overflow():
    def equal(*values):
        return correct(*(Outcome("ok", value, "") for value in values), "")

    for pair in (0.3, 0.1 + 0.2), (33.3333, "33.333"), (1, 1.001 - 1e-9), (10**400, 10**400):
        assert equal(*pair)
    for pair in (1, 1.0011), (10**400, 5), (10**400, 1e308), (None, None), (float("nan"),) * 2:
        assert not equal(*pair)


VERDICTS = {  # what the program's last line is; the right number is 5
    "return 5": True, "return '5.0'": True, "return 6": False, "return None": False,
    "from fractions import Fraction; return Fraction(15, 3)": True,
    "from decimal import Decimal; return Decimal('5.00')": True,
    "return [5]": False, "return 5 / 0": False, "return (": False,
    "import os; os._exit(0)": False,
}  # fmt: skip


def test_verdicts_on_gsm8k_and_on_programs(tmp_path, capsys):
    answer = "Half of 10 is 10/2 = 5.\n#### 5"
    questions = [*(f"Question {line}?" for line in VERDICTS), "Question?", "Who is " * 99]
    lines = (json.dumps({"question": each, "answer": answer}) for each in questions)
    shutil.copytree(WEIGHTS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "test.jsonl").write_text("\ufeff" + "\r\n".join(lines) + "\n \n\n", "utf-8")
    gsm = load(tmp_path, 9)
    x0, prompt = gsm.test[np.arange(len(gsm.test))]
    assert gsm.tokenizer.decode(x0[0][x0[0] != gsm.end]) == "Question return 5?\n#### 5"
    assert (~prompt[-1]).sum() == 1 and (~prompt).any(1).all()
    programs = [f"def simple_math_problem():\n    {line}" for line in VERDICTS] + ["x = 5", ""]
    tokens = np.where(prompt, x0, 17)  # what follows the end does not count
    for row, given, program in zip(tokens, prompt, programs, strict=True):
        ids = [*gsm.tokenizer.encode(program), gsm.end][: (~given).sum()]
        row[given.sum() :][: len(ids)] = ids
    assert gsm.judge(tokens, x0, prompt).tolist() == [*VERDICTS.values(), False, False]
    gsm8k.say_refused()
    assert "refused by lab/sandbox.py: 1 (import os: 1)" in capsys.readouterr().out
    task = load(WEIGHTS, 48)
    x0, prompt = task.test[:8]
    assert task.judge(x0, x0, prompt).all() and not task.judge(x0[::-1], x0, prompt).any()
    for damaged in '{"question": 1, "answer": "1"}', "{", "":
        (tmp_path / "test.jsonl").write_text(damaged)
        with pytest.raises(SystemExit, match=r"test.jsonl: not questions and answers"):
            load(tmp_path, 9)


def test_a_typed_question(monkeypatch):
    task = load(WEIGHTS, 1)
    x0, prompt = task.parse("Who?")
    assert task.judge is None and task.tokenizer.decode(x0[prompt]) == "Who?\n"
    assert task.render(x0[0], prompt[0]).startswith("Who?\n####\n# no_function: no function named")
    escapes = [Outcome("error", None, "\x1b[2J\u202eoops")]
    monkeypatch.setattr(gsm8k.sandbox, "run", lambda *_: escapes)
    assert task.render(x0[0], prompt[0]).endswith("\n# error: [2Joops")
    with pytest.raises(SystemExit, match="no room in rows of 176"):
        task.parse("Who is " * 99)
