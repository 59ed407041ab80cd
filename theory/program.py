"""What the scripts share: the command line, the table of claims, the negative controls.

A row of the table is (claim, what was found, holds). A negative control is a function of the
arguments that gives the rows of a check which must fail, {name: control}.
"""

import argparse


def arguments(doc, controls):
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE.png", help="also draw the figure")
    parser.add_argument(
        "--break", dest="broken", choices=["all", *controls], metavar="NAME",
        help=f"run a negative control instead, to fail: {', '.join(controls)}; or all",
    )  # fmt: skip
    return parser


def add_worlds(parser, worlds):
    """The sizes of random p_data, and of the runs of the shipped buffer."""
    parser.add_argument("--worlds", type=int, default=worlds, help="random p_data per claim")
    parser.add_argument("--V", type=int, default=3, help="vocabulary")
    parser.add_argument("--L", type=int, default=3, help="length")
    parser.add_argument("--rows", type=int, default=4096, help="batch size: chains in the buffer")


def run(args, controls, claims, plot):
    """Checks claims(args) -> (rows, what to plot, ..), or runs a control; the exit status."""
    if args.broken:
        return run_controls(controls, args)
    rows, *curves = claims(args)
    if args.plot:
        plot(args.plot, *curves)
    return report(rows)


def report(rows):
    """Prints the table; the exit status."""
    width = [max(len(row[k]) for row in rows) for k in (0, 1)]
    for claim, found, holds in rows:
        print(f"{claim:<{width[0]}}  {found:<{width[1]}}  {'holds' if holds else 'FAILS'}")
    return int(not all(holds for *_, holds in rows))


def run_controls(controls, args):
    """Exit status 1 if the checks fail, each of them, as they must."""
    names = controls if args.broken == "all" else [args.broken]
    missed = []
    for name in names:
        print(f"--break {name}")
        if report(controls[name](args)) == 0:
            missed.append(name)
            print("HOLDS, but should not")
    return int(not missed)
