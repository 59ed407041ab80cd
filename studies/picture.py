"""An animated picture of masks filling in: samplers on Sudoku, a row for each run.

An SVG with CSS animations and no scripts, so that it moves as an image in a README. `data` is that
of the page that studies/view.py writes.
"""

import html

CELL, GAP, SECONDS, REST = 26, 30, 0.6, 5  # pixels, pixels, per step, steps at the end
STYLE = """
text{font:15px ui-monospace,monospace;text-anchor:middle;fill:#1b1f24}
.l{text-anchor:start;font-family:system-ui,sans-serif}.h{font-weight:600}
.p{fill:#fff}.g{fill:#e3e8ee}.b{font-weight:700}.m{fill:none;stroke:#c4cbd3;stroke-dasharray:3 2}
.x{fill:none;stroke:#59636e;stroke-width:1.5}.n{fill:#dcebfb;stroke:#0b5cad;stroke-width:2;opacity:0}
.s{fill:#116329}.w{fill:#b3261e}.k{font-size:11px}.f{font-size:13px}
@media(prefers-color-scheme:dark){text{fill:#e6eaef}.p{fill:#12161b}.g{fill:#2b333c}
.m{stroke:#4d5864}.x{stroke:#9aa5b1}.n{fill:#12304f;stroke:#79b8ff}.s{fill:#6fd08c}.w{fill:#ff9b93}}
@media(prefers-reduced-motion:reduce){*{animation:none!important}}
"""


def same_updates(files, loaded):
    """This run's file of the last iteration that all runs kept. Raises ValueError for none."""
    common = set.intersection(*({file.name for file in files} for files, _, _ in loaded))
    if not common:
        raise ValueError("svg: the runs have no weights of the same iteration: see --keep_every")
    return [file for file in files if file.name == max(common)]


def picture(data):
    """An animated SVG of the samplers: a row for each run, every digit appears at its step."""
    n, columns = data["box"][0] * data["box"][1], len(data["examples"])
    last = max(max(p["at"]) for run in data["runs"] for p in run["panels"][-1][1])
    width = max(GAP + columns * (n * CELL + GAP), 480)
    parts, y = [], 44
    for run in data["runs"]:
        title = f"{run['name']}, {run['iterations'][-1]:,} updates"
        parts.append(f'<text class="l h" x="{GAP}" y="{y - 14}">{html.escape(title)}</text>')
        for i, (found, truth) in enumerate(zip(run["panels"][-1][1], data["truth"], strict=True)):
            place = f"translate({GAP + i * (n * CELL + GAP)} {y})"
            parts += [f'<g transform="{place}">', *puzzle(found, truth, run["sure"], data), "</g>"]
        y += n * CELL + 76
    legend = (
        f'<text class="l f" x="{GAP}" y="{y - 26}"><tspan class="b">1</tspan> clue'
        f'  \N{BULLET} <tspan class="s">sure (above {run["sure"]:g})</tspan>'
        f'  \N{MULTIPLICATION SIGN} <tspan class="w">wrong</tspan>  frame: newest</text>'
    )
    size = f'width="{width}" height="{y - 12}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {y - 12}" role="img">'
        f"<title>Sudoku puzzles fill in, the surest cells first</title>"
        f"<style>{STYLE}{''.join(keyframes(last))}</style>"
        f'<rect class="p" {size} rx="6"/>{"".join(parts)}{legend}</svg>\n'
    )


def keyframes(last):
    """Of each step: what appears and stays (a); what is shown only during the step (n)."""
    frames = last + 1 + REST
    for step in range(1, last + 1):
        begin, end = (100 * at / frames for at in (step, step + 1))
        yield f"@keyframes a{step}{{0%{{opacity:0}}{begin:.2f}%,100%{{opacity:1}}}}"
        yield f"@keyframes n{step}{{0%,{end:.2f}%{{opacity:0}}{begin:.2f}%{{opacity:1}}}}"
        for kind in "an":
            how = f"{kind}{step} {frames * SECONDS:.1f}s step-end infinite"
            yield f".{kind}{step}{{animation:{how}}}"


def puzzle(panel, truth, sure, data):
    """The elements of one grid, at its own origin."""
    (rows, columns), wrong = data["box"], 0
    n = rows * columns
    for cell, (at, token) in enumerate(zip(panel["at"], panel["tokens"], strict=True)):
        x, y = cell % n * CELL, cell // n * CELL
        digit = f'x="{x + CELL / 2}" y="{y + 18}">{data["words"][token]}</text>'
        box = f'x="{x + 2}" y="{y + 2}" width="{CELL - 4}" height="{CELL - 4}"'
        if not at:
            yield f'<rect class="g" {box}/><text class="b" {digit}'
            continue
        place = sum(step >= at for step in panel["at"][:cell])  # among the cells hidden then
        bad, certain = token != truth[cell], panel["steps"][at - 1][1][place] > 1000 * sure
        wrong += bad
        mark, kind = (
            ("\N{MULTIPLICATION SIGN}", "w") if bad else ("\N{BULLET}" * certain, "s" * certain)
        )
        yield f'<rect class="m" {box}/><rect class="n n{at}" {box}/>'
        yield f'<g class="a{at}"><text class="{kind}" {digit}'
        yield f'<text class="k {kind}" x="{x + CELL - 6}" y="{y + 10}">{mark}</text></g>'
    lines = [f"M0 {i * CELL}h{n * CELL}" for i in range(0, n + 1, rows)]
    lines += [f"M{i * CELL} 0v{n * CELL}" for i in range(0, n + 1, columns)]
    yield f'<path class="x" d="{"".join(lines)}"/>'
    result = f"{wrong} wrong" if wrong else "solved"
    last = max(panel["at"])
    yield f'<text class="l a{last}" x="0" y="{n * CELL + 20}">{result} in {last} steps</text>'
