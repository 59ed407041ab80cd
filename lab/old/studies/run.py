"""Carry out a study of catalogue.py, from scratch or from where it was stopped, to its figure.

    python -m studies.run                                      all studies and the time each takes
    python -m studies.run --study=tau --seeds="[1,2]" --jobs=4
    python -m studies.run --study=tau --dry_run                print the commands

Runs go to out/runs/<config>/<run>_<seed>, the figure and its table to out/runs/<config>/figures.
A complete run is skipped, a stopped one resumes, and one with other settings or changed config
files starts again (train.py archives the old one). Ctrl-C and SIGTERM stop all runs, each with a
checkpoint.
"""

import os
import shlex
import signal
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from configurator import configure, errors_as_messages
from engine.files import Lock, progress_bar, say
from studies.catalogue import STUDIES

study = ""  # its name; "" = list all
seeds = [1, 2, 3]  # 0..:
jobs = 2  # 1..: runs at once, each on one core
config = ""  # a configuration in place of the study's own
out_dir = "out/runs"  # runs go to out_dir/<config>/<run>_<seed>
dry_run = False  # print the commands of what is left to do
# Flags of all runs, which may override them: the method is studied as it was published.
SHARED = '--eval_policies=["top_k"]', "--second_visit=False", "--chains_from=0"
RESUME = "--init_from=resume"


class Run(NamedTuple):
    folder: Path
    flags: list  # of train.py
    settings: str  # what its training depends on: flags and config files


# -- what to do ------------------------------------------------------------------------------------
def plan(runs, file, folder):
    """The runs of all seeds."""
    planned = []
    for name, own in runs.items():
        for seed in dict.fromkeys(seeds):
            flags = [file, f"--seed={seed}", *SHARED, *own.split()]
            planned.append(Run(folder / f"{name}_{seed}", flags, settings_of(flags)))
    return planned


def settings_of(flags):
    """The flags, some of which are config files, and a checksum of all config files."""
    named = {Path(flag) for flag in flags if not flag.startswith("--")}
    files = sorted({*named, *Path("config").glob("*.py")})  # they build on each other
    version = f"{zlib.crc32(b''.join(path.read_bytes() for path in files)):08x}"
    return " ".join([*flags, version])


def training_command(run):
    """The command that completes the run, None if it is complete."""
    settings = run.folder / "settings.txt"
    checkpoint = run.folder / "checkpoint.pt"
    command = ["train.py", *run.flags, f"--out_dir={run.folder}"]
    if not settings.is_file() or settings.read_text() != run.settings:
        return command
    if (run.folder / "complete").exists():
        return None
    # An older checkpoint has other settings: train.py was stopped before it could archive it.
    resume = checkpoint.exists() and checkpoint.stat().st_mtime >= settings.stat().st_mtime
    return [*command, RESUME] if resume else command


# -- doing it --------------------------------------------------------------------------------------
class Trainings:
    """The processes of train.py that this program has started."""

    def __init__(self):
        self.started, self.stopped = [], False

    def complete(self, run):
        """Train the run to its end. Raises ChildProcessError, or ValueError if it is in use."""
        with Lock(run.folder, "study.lock"):  # before another study writes other settings
            if not (command := training_command(run)):
                return
            log, complete = run.folder / "log.txt", run.folder / "complete"
            complete.unlink(missing_ok=True)
            if command[-1] != RESUME:
                (run.folder / "settings.txt").write_text(run.settings)
                log.unlink(missing_ok=True)
            env = {"OMP_NUM_THREADS": "1"} | os.environ
            with open(log, "a") as file:
                pipes = {"stdout": file, "stderr": subprocess.STDOUT}
                process = subprocess.Popen([sys.executable, *command], env=env, **pipes)
            self.started.append(process)
            if self.stopped:  # meanwhile
                process.terminate()
            if code := process.wait():
                raise ChildProcessError(f"{run.folder}: exit code {code}, see {log}")
            complete.touch()


def make_runs(runs, jobs):
    """Make all runs, `jobs` at once. Raises SystemExit if one has failed, or after Ctrl-C."""
    trainings, failures = Trainings(), 0
    bar = progress_bar(total=len(runs), unit="run")
    pool = ThreadPoolExecutor(jobs)
    try:
        for future in as_completed([pool.submit(trainings.complete, run) for run in runs]):
            try:
                future.result()
                bar.update()
            except (OSError, ValueError) as error:  # the other runs continue
                say(str(error))
                failures += 1
    except KeyboardInterrupt:
        trainings.stopped = True
        for process in trainings.started:
            process.terminate()
        pool.shutdown(cancel_futures=True)
        raise SystemExit("stopped: the same command resumes from there") from None
    if failures:
        raise SystemExit(f"{failures} of {len(runs)} runs failed, so there is no figure")


# -- command line ----------------------------------------------------------------------------------
def main():
    if not study:
        print("--study=NAME carries one of these out. Times are of seeds 1, 2, 3 on two cores.\n")
        for name, (question, minutes, runs, _, file) in STUDIES.items():
            print(f"{name}\n    {question}\n    {file}: 3 x {len(runs)} runs, {minutes} minutes")
        return
    with errors_as_messages():
        if study not in STUDIES:
            raise ValueError(f"study {study!r}: expected {', '.join(STUDIES)}")
        file = config or STUDIES[study].config
        folder = Path(out_dir, Path(file).stem)
        runs = plan(STUDIES[study].runs, file, folder)
    figure = folder / "figures" / f"{study}.png"
    shown = ",".join(str(run.folder) for run in runs)
    flags = f"--figure={STUDIES[study].figure}", f"--runs={shown}", f"--out={figure}"
    draw = ["-m", "studies.plot", *flags]
    if dry_run:
        print("export OMP_NUM_THREADS=1")
        for command in [*filter(None, map(training_command, runs)), draw]:
            print(shlex.join(["python", *command]))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    make_runs(runs, jobs)
    done = subprocess.run([sys.executable, *draw], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{figure}: not drawn")
    figure.with_suffix(".md").write_text(done.stdout)
    print(done.stdout, end="")


if __name__ == "__main__":
    configure(globals())
    main()
