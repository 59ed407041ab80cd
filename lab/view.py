"""How runs fill in held-out examples, step by step: an SVG, animated, without a script.

    python lab/view.py                                    # a Sudoku, as sample.py fills it in
    python lab/view.py --what=chain --still               # the states of a chain, side by side
    python lab/view.py --out_dir="['out/study/mdm_1','out/study/puma_plus_1']" --examples=3

Each run has a panel with the same examples in turn. `what` is the sampler, with tokens of the
model's own; a chain of true tokens as in training, by the run's policy, K and tau; or random, true
tokens at random places, K at a time. A run may be weights kept on the way, as RUN/at/400. Of a
program, the docstring that repeats the question is not shown.
"""

import functools
import sys
import textwrap
from html import escape
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import checkpoint
import loss
import policies
import puma
import sample
from configurator import configure, pick
from lab.tables import label

out_dir = ["results/weights/sudoku_mini"]  # runs of train.py on the same data
out = "out/view.svg"
what = "sampler"  # sampler, chain, random
examples = 1  # 1.. the first held-out ones
still = False  # all states of the first example side by side, instead of one after the other
# -- the sampler
policy = "top_k"  # top_k, margin, entropy, random
reveal = 2  # 1.. tokens per step
tau = 1.0  # 0..1 reveal all with confidence above this, else `reveal`; 1.0 = off

WIDTH = 46  # characters of a line
HOLD = 6  # frames, half a second each, in which an answer stays
STYLE = """
text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#1f2328}
.t{font-weight:bold}.g{fill:#656d76}.m{fill:#d0d7de}.n{fill:#0969da}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{fill:#8d96a0}.m{fill:#3d444d}.n{fill:#58a6ff}}
"""


class Filled(NamedTuple):
    """What a run has put into N examples, and at which step, 0 = given; x, at (N, L)."""

    name: str
    problem: object
    prompt: torch.Tensor
    x: torch.Tensor
    at: torch.Tensor
    solved: list


def main():
    order = policies.POLICIES[pick("policy", policy, policies.POLICIES)]
    sampler = functools.partial(sampled, how=(order, reveal, tau))
    ways = {"sampler": sampler, "chain": chained, "random": at_random}
    runs = [filled(folder, examples, ways[pick("what", what, ways)]) for folder in out_dir]
    picture = side_by_side(runs[0]) if still else animated(runs)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(picture)
    print(f"wrote {out}, {len(picture) / 1000:.0f} kB; open it in a browser")


def filled(folder, count, states_of):
    """states_of(model, settings, K, x0, hidden) -> [x (N, L)], from the first to the filled one."""
    model, run = checkpoint.load_model(folder, "cpu")
    if checkpoint.of_variant(run["variant"], "generate", None):
        raise SystemExit(f"{run['variant']} has a sampler of its own, which this does not follow")
    problem = checkpoint.module(run["task"]).load(run["data"], count)
    x0, prompt = problem.test[:count]
    given = torch.as_tensor(prompt)
    K = puma.value_at(run["k_schedule"], checkpoint.load(folder)["iteration"])
    states = states_of(model, run, K, torch.as_tensor(x0).long(), ~given)
    at = (torch.stack(states) == model.mask_token).sum(0)
    solved = problem.judge(states[-1].numpy(), x0, prompt).tolist() if problem.judge else []
    name = label(run["variant"] or run["method"])
    return Filled(name, problem, given, states[-1], at, solved)


def sampled(model, run, K, x0, hidden, how):
    states = []
    sample.generate(model, x0, hidden, *how, show=lambda x: states.append(x.clone()))
    return states


def at_random(model, run, K, x0, hidden):
    torch.manual_seed(1)
    place = torch.rand(x0.shape).masked_fill(~hidden, 2).argsort(1).argsort(1)
    steps = range(-(-int(hidden.sum(1).max()) // K) + 1)
    return [x0.masked_fill(hidden & (place >= K * step), model.mask_token) for step in steps]


def chained(model, run, K, x0, hidden):
    return chain(model, x0, hidden, policies.POLICIES[run["policy"]], K, run["tau"])


@torch.no_grad()
def chain(model, x0, hidden, policy, K, tau):
    """The states x (N, L) of teacher-forced chains, from the first to the clean one.

    puma.step at r = 0, the least share of each stage; the last stage reveals all that is left.
    """
    effective = hidden.sum(1)
    stage = torch.zeros_like(effective)
    stages = puma.stage_count(x0.shape[1], K)
    states = [x0.masked_fill(hidden, model.mask_token)]
    while hidden.any():
        log_probs = model.logits(model(states[-1])).log_softmax(-1)
        _, *seen = loss.read(log_probs, x0, policy)
        now = hidden, stage, effective, *seen
        hidden, stage, ended = puma.step(*now, torch.zeros(len(x0)), stages, tau)
        hidden = hidden & ~ended[:, None]
        states.append(x0.masked_fill(hidden, model.mask_token))
    return states


# -- where each token stands -----------------------------------------------------------------------
def pieces(run, row):
    """[(line, column, text, step that reveals it)] of an example; a Sudoku's cells, or a text's."""
    tokens = run.x[row].tolist()
    at = run.at[row].tolist()
    if box := getattr(run.problem, "box", None):
        n = box[0] * box[1]
        where = [divmod(i, n) for i in range(n * n)]
        return [(line, 2 * column + column // box[1] * 2, str(token + 1), step)
                for (line, column), token, step in zip(where, tokens, at, strict=True)]  # fmt: skip
    words = [run.problem.tokenizer.decode([token]) for token in tokens]
    answer = [i for i in range(len(tokens)) if not run.prompt[row, i]]
    end = next((i for i in answer if tokens[i] == run.problem.end), len(tokens))
    quotes = [i for i in answer if '"""' in words[i] and i < end]
    first = quotes[1] + 1 if len(quotes) > 1 else answer[0]
    found = []
    line = column = 0
    for i in range(first, end):
        for k, text in enumerate(words[i].split("\n")):
            line, column = (line + 1, 0) if k or column + len(text) > WIDTH else (line, column)
            if word := text.strip():
                shown = "".join(c if c.isprintable() else "?" for c in word)  # no escapes
                found.append((line, column + text.index(word), shown, at[i]))
            column += len(text)
    least = min((piece[0] for piece in found), default=0)
    return [(line - least, *rest) for line, *rest in found]


def question(run, row):
    """The text of a prompt; a Sudoku's is in its cells."""
    if not hasattr(run.problem, "tokenizer"):
        return ""
    return run.problem.tokenizer.decode(run.x[row][run.prompt[row]].tolist()).strip()


def lines(found, step, high):
    """The same as `high` lines of text at a step; what is hidden is shaded."""
    shown = [""] * high
    for line, column, text, at in found:
        shown[line] = f"{shown[line]:{column}}" + (text if at <= step else "░" * len(text))
    return [f"{line:{WIDTH}}" for line in shown]


# -- drawing ---------------------------------------------------------------------------------------
def text_at(x, y, text, kind=""):
    return f'<text x="{8.43 * x:.0f}" y="{18 * y + 14:.0f}" class="{kind}">{escape(text)}</text>'


def mask_at(x, y, text):
    size = f'width="{8.43 * len(text) - 2:.0f}" height="14" rx="3"'
    return f'<rect x="{8.43 * x + 1:.0f}" y="{18 * y + 2:.0f}" {size} class="m"/>'


def page(width, height, parts, style=""):
    box = f"0 0 {8.43 * width:.0f} {18 * height + 4:.0f}"
    size = f'width="{8.43 * width:.0f}" viewBox="{box}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, f"<style>{STYLE}{style}</style>", *parts, "</svg>\n"])


def side_by_side(run):
    """The states of the first example as a strip; what a step has revealed is blue."""
    found = pieces(run, 0)
    wide = max(column + len(text) for _, column, text, _ in found) + 3
    high = max(line for line, *_ in found) + 3
    steps = max(step for *_, step in found)
    per_line = max(1, 120 // wide)
    parts = []
    for state in range(steps + 1):
        x = state % per_line * wide
        y = state // per_line * high
        parts.append(text_at(x, y, f"{sum(step > state for *_, step in found)} hidden", "g"))
        for line, column, text, step in found:
            where = x + column, y + line + 1, text
            kind = "n" if step == state > 0 else "t" if step else ""
            parts.append(mask_at(*where) if step > state else text_at(*where, kind))
    return page(wide * min(per_line, steps + 1), (steps // per_line + 1) * high, parts)


def animated(runs):
    """Panels one below the other, all examples in turn, each as long as the slowest run takes."""
    lasts = torch.stack([run.at.amax(1) for run in runs]).amax(0).tolist()
    clock = Clock(sum(lasts) + HOLD * len(lasts))
    panels = [[pieces(run, row) for row in range(len(lasts))] for run in runs]
    lines = [line for panel in panels for found in panel for line, *_ in found]
    high = 3 + max(lines, default=0)
    questions = [textwrap.wrap(question(runs[0], row), WIDTH) for row in range(len(lasts))]
    top = max(map(len, questions)) + 1 if any(questions) else 0
    parts = []
    begin = 0
    for row, last in enumerate(lasts):
        said = [text_at(0, y, line, "g") for y, line in enumerate(questions[row])]
        parts.append(clock.group(begin, begin + last + HOLD, said))
        begin += last + HOLD
    for index, (run, panel) in enumerate(zip(runs, panels, strict=True)):
        begin = 0
        for row, last in enumerate(lasts):
            until = begin + last + HOLD
            parts += example(clock, run, row, panel[row], top + index * high, begin, until)
            begin = until
    return page(WIDTH, top + high * len(runs), parts, "".join(clock.rules.values()))


def example(clock, run, row, found, y, begin, until):
    """What is seen of it from frame `begin` until another, from line y on."""
    parts = []
    passes = int(run.at[row].max())
    for step in range(passes + 1):
        own = [(column, y + line + 1, text) for line, column, text, at in found if at == step]
        texts = [text_at(*piece, "" if step else "g") for piece in own]
        parts.append(clock.group(begin + step, until, texts))
        if step:
            parts.append(clock.group(begin, begin + step, [mask_at(*piece) for piece in own]))
        said = f"{run.name}: {step} forward pass{'es' * (step != 1)}"
        if step == passes and run.solved:
            said += ", right" if run.solved[row] else ", wrong"
        stays = begin + step + 1 if step < passes else until
        parts.append(clock.group(begin + step, stays, [text_at(0, y, said, "t")]))
    return parts


class Clock:
    """Groups that are visible from one frame to another, in an animation that begins again."""

    def __init__(self, frames):
        self.frames = frames
        self.rules = {}

    def group(self, first, last, parts):
        name = f"f{first}-{last}"
        start, stop = (100 * frame / self.frames for frame in (first, last))
        self.rules[name] = (
            f"@keyframes {name}{{0%{{opacity:{int(not first)}}}{start:.3f}%{{opacity:1}}"
            f"{stop:.3f}%{{opacity:{int(last == self.frames)}}}}}"
            f".{name}{{animation:{name} {self.frames / 2:g}s step-end infinite}}\n"
        )
        return f'<g class="{name}">{"".join(parts)}</g>'


if __name__ == "__main__":
    configure(globals())
    main()
