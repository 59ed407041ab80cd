"""What goes wrong beside a run: a second one in its folder, one of its own processes lost."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time

from tests.attacks.checkpoints import EXPORT, NELBO, SAMPLE, SOLVE
from tests.attacks.command import Ended
from tests.attacks.lab import TINY, Case, placed, rows, same, weights
from tests.attacks.machine import AGAIN, LONG, NEW, reached, until


# -- two at once -----------------------------------------------------------------------------------
def doubles(lab, rng):
    whole = lab.whole(
        NEW, None, lambda folder, ended: (weights(folder / "new"), iterations(folder))
    )
    result = lambda folder, ended: (weights(folder / "new"), iterations(folder))  # noqa: E731
    for first, second in ((NEW, NEW), (AGAIN, AGAIN), (NEW, AGAIN), (AGAIN, NEW)):
        name = " + ".join("resume" if words is AGAIN else "new" for words in (first, second))
        for at in (0, 5, 120):
            yield Case(f"{name}, the second at {at}", (), start_for(lab, first), result, whole,
                       act=both(first, second, at, lab), must="same",
                       after=one_refused(whole, result))  # fmt: skip
    for name, words in (("sample", SAMPLE), ("eval", SOLVE), ("nelbo", NELBO), ("export", EXPORT)):
        beside = [word.replace("{out}", "{out}/new") for word in words]
        yield Case(f"{name} beside training", (), act=both(NEW, beside, 60, lab), result=result,
                   whole=whole)  # fmt: skip
    yield Case("eval + eval", (), lambda f: shutil.copytree(lab.trained, f, dirs_exist_ok=True),
               act=both(SOLVE, SOLVE, 0, lab), must="any", after=records_once)  # fmt: skip
    made = ("train.py", *TINY, "--max_iters=4", "--clues=21")
    pair = [(*made, "--out_dir={out}/" + name) for name in ("new", "other")]
    yield Case("two runs that make the same puzzles", (), act=both(*pair, 0, lab), must="any",
               after=lambda folder, ended: None if ended.status == 0 and same(
                   weights(folder / "new"), weights(folder / "other")) else "lost")  # fmt: skip
    for name, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
        for words in (NEW, AGAIN):
            kind = "resume" if words is AGAIN else "new"
            yield Case(f"{kind} after a {name} run", (), act=after_signal(words, number),
                       result=result, whole=whole,
                       must="same" if number == signal.SIGKILL else "refuse",
                       after=lambda folder, ended, n=number:
                       "lost" if n == signal.SIGKILL and ended.status else None)  # fmt: skip


def iterations(folder):
    """What the record has, line by line."""
    lines = (folder / "new/metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [(each["type"], each["iter"]) for each in found if each["type"] != "config"]


def start_for(lab, first):
    """What a resume goes on from: a run killed at its 100th update."""

    def arrange(folder):
        if first is AGAIN:
            with lab.start(*placed(NEW, folder)) as process:
                until(lambda: reached(folder / "new", 100), process)
                process.kill()

    return arrange


def both(first, second, at, lab):
    """An act: the second command once the first has come to that iteration (0: at once)."""

    def act(lab, folder):
        one = lab.start(*placed(first, folder))
        if at:
            until(lambda: reached(folder / "new", at), one)
        other = lab.start(*placed(second, folder))
        ended = other.wait(lab.patience), one.wait(lab.patience)
        texts = "".join(each.errors for each in ended)
        codes = [each.status for each in ended]
        status = None if None in codes else next((code for code in codes if code), 0)
        return Ended(status, 0, str(codes), texts)

    return act


def one_refused(whole, result):
    """One of the two went on to its end as if it were alone, the other was refused."""

    def after(folder, ended):
        codes = json.loads(ended.output.replace("None", "null"))
        if sorted(map(bool, codes)) == [False, False]:
            return None  # both: "same" decides
        if all(codes):
            return "lost"
        try:
            return "correct" if same(result(folder, ended), whole.found) else "lost"
        except Exception:
            return "lost"

    return after


def records_once(folder, ended):
    lines = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
    keys = [(each["id"], each["index"]) for each in lines]
    rows(folder, ended)
    return None if len(keys) == len(set(keys)) else "silent"


def after_signal(words, number):
    def act(lab, folder):
        with lab.start(*placed(NEW, folder)) as first:
            until(lambda: reached(folder / "new", 100), first)
            first.kill(number)
            time.sleep(0.2)
            return lab.run(*placed(words, folder))

    return act


# -- processes of one run --------------------------------------------------------------------------
def ranks(lab, rng):
    flags = (*LONG, "--max_iters=100", "--checkpoint_interval=10", "--eval_interval=100",
             "--out_dir={out}/new")  # fmt: skip
    if "\npatience = " in (lab.tree / "train.py").read_text():
        flags += ("--patience=15",)  # seconds, not minutes
    source = lab.folder / "two"
    source.mkdir()
    for each in start_ranks(lab, source, flags):
        each.wait(120)
    known = weights(source / "new")
    for rank in (0, 1):
        for at in (1, 5, 30):
            yield Case(f"kill -9 of rank {rank} at {at}", (), act=losing(rank, at, signal.SIGKILL,
                       flags), must="refuse", after=resumes(lab, flags, known))  # fmt: skip
        for name in ("SIGTERM", "SIGINT", "SIGSTOP"):
            yield Case(f"{name} to rank {rank} at 30", (), act=losing(rank, 30,
                       getattr(signal, name), flags), must="refuse",
                       after=resumes(lab, flags, known))  # fmt: skip
    for name, at in (("SIGKILL", 0), ("SIGKILL", 30), ("SIGSTOP", 30)):
        yield Case(
            f"torchrun, {name} to a rank at {at}", (), must="refuse",
            act=torchrun(getattr(signal, name), at, flags),
        )  # fmt: skip


def start_ranks(lab, folder, flags, *more):
    """Two processes as torchrun starts them."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        port = own.getsockname()[1]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2}
    words = placed(("train.py", *flags, *more), folder)
    return [lab.start(*words, env=env | {"RANK": r, "LOCAL_RANK": r}) for r in (0, 1)]


def losing(rank, at, number, flags):
    """An act: a signal to one of two; the Ended of the other, which has a minute."""

    def act(lab, folder):
        processes = start_ranks(lab, folder, flags)
        lost, other = processes[rank], processes[1 - rank]
        until(lambda: reached(folder / "new", at), processes[0])
        lost.kill(number)
        ended = other.wait(60)
        lost.wait(10 if number in (signal.SIGTERM, signal.SIGINT) else 0)
        return ended

    return act


def resumes(lab, flags, known):
    """What is left goes on to the weights of an undisturbed run; nothing is left if none began."""

    def after(folder, ended):
        if ended.status == 0 or not (folder / "new/checkpoint.pt").exists():
            return None
        for each in start_ranks(lab, folder, flags, "--init_from=resume"):
            each.wait(120)
        return None if same(weights(folder / "new"), known) else "lost"

    return after


def torchrun(number, at, flags):
    """The real one: it prints a traceback of its own, which is left out here."""

    def act(lab, folder):
        words = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", "train.py")
        with lab.start(*words, *placed(flags, folder)) as process:
            ready = (lambda: reached(folder / "new", at)) if at else lambda: children(process.pid)
            until(ready, process)
            for pid in children(process.pid)[-1:]:
                os.kill(pid, number)
            ended = process.wait(60)
        errors = "" if "Traceback" not in ended.errors else "torchrun: a process failed\n"
        return ended._replace(errors=errors or ended.errors)

    return act


def children(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return sorted(map(int, found.stdout.split()))


GROUPS = {"doubles": doubles, "ranks": ranks}
