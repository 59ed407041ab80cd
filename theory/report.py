"""What the scripts share: the command line, the table of claims, negative controls.

A row of the table is (claim, what was found, whether it holds), or a heading: a string. A negative
control breaks one thing: {name: function of the arguments that returns the rows of a check, all of
which must fail}.
"""

import argparse
import sys


def main(doc, claims, controls, **sizes):
    """Run a script: claims(args) -> rows. Exits with 1 if a claim fails.

    sizes: {name: default} of the flags that set how much is checked.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--break", dest="broken", choices=["all", *controls], metavar="NAME",
        help=f"run a negative control, which must fail: {', '.join(controls)}; or all",
    )  # fmt: skip
    for name, default in {"seed": 0, **sizes}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    args = parser.parse_args()
    sys.exit(run_controls(controls, args) if args.broken else show(claims(args)))


def size(args):
    """The size of a run of the shipped code: (rows per batch, batches, seed)."""
    return args.rows, args.calls, args.seed


def show(rows):
    """Prints the table; returns the exit status."""
    checks = [row for row in rows if not isinstance(row, str)]
    wide = max(len(claim) for claim, _, _ in checks)
    for row in rows:
        if isinstance(row, str):
            print(f"\n{row}")
        else:
            claim, found, holds = row
            print(f"  {'holds' if holds else 'FAILS'}  {claim:<{wide}}  {found}")
    return int(not all(holds for *_, holds in checks))


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
