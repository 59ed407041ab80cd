"""The terminal's view of a problem: marks, colours, and that training is left as it was."""

import re

import numpy as np
import pytest
import torch
from toys import MASK, make_model, make_problems

import tasks
from runs import watch
from sample import Sampler, generate
from sudoku import Puzzles

CONTROLS = "\x1b[2J\x1b]0;title\a\r\b\0\x7f\x9b31m\u202e\ud800"
MARK = {kind: mark for kind, (mark, _) in watch.MARKS.items()}


class Held:
    """A task whose only held-out row is x0, of which `prompt` is given."""

    def __init__(self, x0, prompt):
        self.validation = type("Rows", (), {"__getitem__": lambda _, i: (x0[None], prompt[None])})()


SOLUTION = np.array([0, 1, 2, 3, 2, 3, 0, 1, 1, 0, 3, 2, 3, 2, 1, 0])
GIVEN = np.arange(16) % 3 == 0


def screen():
    puzzles = Puzzles((SOLUTION + 1)[None] * GIVEN, (2, 2))
    x, hidden = (torch.as_tensor(part[0]) for part in puzzles[[0]])
    return watch.Screen(Held(SOLUTION, GIVEN), puzzles, x, hidden)


def frame(capsys, step):
    tokens, at, sure = SOLUTION.copy(), np.where(GIVEN, 0, 1), np.full(16, 0.95)
    tokens[1], at[2], at[4], at[5], sure[7] = 3, 2, 3, 2, 0.5
    screen().draw(tokens, at, sure, step, " of 3")
    return capsys.readouterr().out


def test_each_kind_has_its_mark_and_columns_stay(capsys):
    lines = frame(capsys, 2).splitlines()
    wrong, newest, sure, unsure = (MARK[k] for k in ("wrong", "newest", "sure", "less sure"))
    assert lines[0] == f"1 4{wrong}| 3{newest}4"
    assert lines[1] == f". 4{newest}| 1 2{unsure}"
    assert lines[2] == "----+----" or set(lines[2]) == {"-", "+"}
    assert lines[3] == f"2{sure}1 | 4{sure}3{sure}"
    assert all(f"{MARK[kind]} {kind}" in lines[-2] for kind in MARK if MARK[kind])
    assert lines[-1] == "step 2 of 3"


def test_what_is_written_from_nothing_has_no_truth():
    """Another text is as right as the held-out one."""
    x, nothing = torch.zeros(16, dtype=torch.long), np.zeros(16, bool)
    assert watch.truth(Held(SOLUTION, nothing), x, ~torch.as_tensor(nothing)) is None


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colours_where_they_are_wanted_and_marks_everywhere(no_color, capsys, monkeypatch):
    plain = frame(capsys, 2)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", no_color)
    shown = frame(capsys, 2)
    coloured = re.findall(r"\033\[[0-9;]+m", shown)
    assert bool(coloured) == (not no_color)
    assert re.sub(r"\033\[[0-9;]+m", "", shown) == plain
    assert not coloured or len({*coloured}) == len(watch.MARKS) + 1  # and the one that ends them


def test_a_terminal_shows_frames_in_place(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    here = screen()
    here.begin()
    first = capsys.readouterr().out
    here.begin()
    again = capsys.readouterr().out
    assert again == f"\033[{first.count(chr(10))}A\033[J{first}"


def test_text_is_escaped_and_a_mark_comes_before_the_end_of_the_line():
    runs = watch.marked([(0, CONTROLS), (None, CONTROLS)], ["sure"])
    shown = tasks.printable(CONTROLS)
    assert "".join(text for text, _ in runs) == shown + MARK["sure"] + shown
    runs = watch.marked([(0, "a"), (1, "b\n"), (2, "c")], ["sure", "sure", "wrong"])
    assert "".join(text for text, _ in runs) == f"ab{MARK['sure']}\nc{MARK['wrong']}"


@pytest.mark.parametrize(
    "block, options",
    [
        *((block, {"carry": carry}) for block in (0, 4) for carry in (False, True)),
        (0, {"causal": True, "shifted": True}),
    ],
)
@torch.no_grad()
def test_confidences_are_those_that_the_sampler_had(block, options):
    """Against the sampler's own: what it gives the policy when it reveals one token a step."""
    model, (x, hidden) = make_model(**options), make_problems()
    for row, mask in zip(x, hidden, strict=True):
        seen = []

        def spy(log_probs, confidence, position, seen=seen):
            seen.append(dict(zip(position.tolist(), confidence.tolist(), strict=True)))
            return -position.double()

        tokens, at, _ = generate(model, row[None], mask[None], Sampler(spy, 1), block)
        found = watch.confidences(model, tokens[0], at[0], block).tolist()
        steps = zip(at[0].tolist(), range(len(row)), strict=True)
        expected = [seen[step - 1][place] if step else 0 for step, place in steps]
        assert found == pytest.approx(expected)
    assert MASK not in tokens[0]
