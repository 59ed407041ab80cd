"""Damage files, disks, settings and processes of tiny runs, and count what becomes of it.

    python -m tests.attacks.damage                                   all groups, 15 minutes or so
    python -m tests.attacks.damage --group=checkpoints,nan --share=0.1 --verbose
    python -m tests.attacks.damage --repository=../other --commit=HEAD~5

Prints a table of the verdicts of report.py and writes a JSON line for each case. The same seed
gives the same cases.
"""

import math
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

from configurator import configure
from tests.attacks import (
    checkpoints,
    corpora,
    folders,
    machine,
    nonfinite,
    processes,
    puzzles,
    records,
)
from tests.attacks import settings as wrong_settings
from tests.attacks.command import ROOT, Ended
from tests.attacks.lab import Lab, placed
from tests.attacks.report import BAD, row, table, verdict, write_line

group = ""  # groups or families of them, with commas between; "" = all
case = ""  # only cases whose name has this in it
share = 1.0  # of the cases of each group, chosen at random
seed = 1
patience = 60.0  # seconds until a command counts as hanging; a full disk is tried for half a minute
repository = ""  # which to attack; "" = this one
commit = ""  # which version of it; "" = its files as they are
out = "out/attacks/damage.jsonl"
verbose = False  # print the cases that did not hold

FAMILIES = {
    "checkpoints": checkpoints.GROUPS,
    "data": puzzles.GROUPS | corpora.GROUPS,
    "folders": folders.GROUPS,
    "records": records.GROUPS,
    "settings": wrong_settings.GROUPS,
    "machine": machine.GROUPS,
    "processes": processes.GROUPS,
    "nan": nonfinite.GROUPS,
}
GROUPS = {name: cases for family in FAMILIES.values() for name, cases in family.items()}


def main():
    names, rows = chosen(), []
    os.nice(10)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all is put away
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder, open(out, "w") as file:
        lab = Lab(folder, repository or ROOT, commit, patience)
        for name in names:
            rng = random.Random(f"{seed} {name}")
            cases = [each for each in GROUPS[name](lab, rng) if case in each.name]
            for each in tqdm(thinned(cases, name), name, unit="case", disable=None):
                found = attack(lab, name, each)
                rows.append(found)
                write_line(file, found)
                if verbose and found["verdict"] in (*BAD, "vague"):
                    tqdm.write("{verdict:10} {group}: {case} | {stderr}".format(**found))
    print(table(rows))


def chosen():
    """The names of the groups that are asked for. Raises SystemExit for one that is not there."""
    names = []
    for name in filter(None, group.split(",")):
        if name not in GROUPS and name not in FAMILIES:
            raise SystemExit(f"group {name!r}: expected {', '.join([*FAMILIES, *GROUPS])}")
        names += [name] if name in GROUPS else FAMILIES[name]
    return [*dict.fromkeys(names)] or [*GROUPS]


def thinned(cases, name):
    rng = random.Random(f"{seed} {name} {share}")
    return [cases[i] for i in sorted(rng.sample(range(len(cases)), math.ceil(share * len(cases))))]


def attack(lab, name, each):
    """One case in a folder of its own -> its line."""
    folder = lab.folder / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    each.arrange(folder)
    words = placed(each.words, folder)
    begin = time.perf_counter()
    if each.act:
        ended = each.act(lab, folder)
        ended = Ended(ended.status, time.perf_counter() - begin, ended.output, ended.errors)
    else:
        ended = lab.run(*words, prelude=each.prelude, patience=each.patience)
    return row(name, each, ended, verdict(each, ended, folder), words)


if __name__ == "__main__":
    configure(globals())
    main()
