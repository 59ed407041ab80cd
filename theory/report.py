"""What the scripts share: the command line, the table of claims, negative controls, figures.

A row of the table is (claim, what was found, whether it holds). A negative control breaks one
thing: {name: function of the arguments that returns the rows of a check, all of which must fail}.
"""

import argparse
import sys
from typing import NamedTuple


class Panel(NamedTuple):
    """A part of a figure; curves {label: (format of matplotlib, x, y)}."""

    xlabel: str
    ylabel: str
    curves: dict
    yscale: str = "linear"


def main(doc, claims, controls, panels=None, **sizes):
    """Run a script: claims(args) -> rows, panels(args) -> [Panel]. Exits with 1 if a claim fails.

    sizes: {name: default} of the flags that set how much is checked.
    """
    args = arguments(doc, controls, panels, sizes)
    if args.broken:
        sys.exit(run_controls(controls, args))
    status = show(claims(args))
    if panels and args.plot:
        plot(args.plot, panels(args))
    sys.exit(status)


def arguments(doc, controls, panels, sizes):
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--break", dest="broken", choices=["all", *controls], metavar="NAME",
        help=f"run a negative control, which must fail: {', '.join(controls)}; or all",
    )  # fmt: skip
    if panels:
        parser.add_argument("--plot", metavar="FILE.png", help="also draw the figure")
    for name, default in {"seed": 0, **sizes}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    return parser.parse_args()


def size(args):
    """The size of a run of the shipped code: (rows per batch, batches, seed)."""
    return args.rows, args.calls, args.seed


def show(rows):
    """Prints the table; returns the exit status."""
    width = [max(len(row[k]) for row in rows) for k in (0, 1)]
    for claim, found, holds in rows:
        print(f"{claim:<{width[0]}}  {found:<{width[1]}}  {'holds' if holds else 'FAILS'}")
    return int(not all(holds for *_, holds in rows))


def run_controls(controls, args):
    """Returns exit status 1 if every row of every control fails, as it must."""
    missed = []
    for name in controls if args.broken == "all" else [args.broken]:
        print(f"--break {name}")
        rows = controls[name](args)
        show(rows)
        missed += [claim for claim, _, holds in rows if holds]
    if missed:
        print("HOLDS, but should not:", *missed, sep="\n  ")
    return int(not missed)


def plot(path, panels):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = 4.5 * len(panels), 3.4
    figure, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for ax, panel in zip(axes[0], panels, strict=True):
        ax.set(xlabel=panel.xlabel, ylabel=panel.ylabel, yscale=panel.yscale)
        for label, (style, x, y) in panel.curves.items():
            ax.plot(x, y, style, label=label)
        if len(panel.curves) > 1:
            ax.legend(fontsize="small")
    figure.savefig(path, dpi=150)
