"""Carry out a study of catalogue.py, from scratch or from where it was stopped, to its figures.

    python -m studies.run                                      all studies and the time each takes
    python -m studies.run --study=tau --seeds="[1,2]" --jobs=4
    python -m studies.run --study=tau --dry_run                print the commands
    python -m studies.run --study=tau --archive=results/sudoku_tiny.zip     only the figures

Runs go to out/runs/<config>/<run>_<seed>, figures with their tables to out/runs/<config>/figures.
A complete run is skipped, a stopped one resumes, and one with other settings or changed config
files starts again (train.py archives the old one). Ctrl-C and SIGTERM stop all runs, each with a
checkpoint.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import zlib
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from configurator import configure, errors_as_messages
from engine.files import Lock, progress_bar, say
from studies import records
from studies.catalogue import STUDIES

study = ""  # its name; "" = list all
seeds = [1, 2, 3]  # 0..:
jobs = 2  # 1..: runs at once, each on one core
config = ""  # a configuration in place of the study's own
out_dir = "out/runs"  # runs go to out_dir/<config>/<run>_<seed>
dry_run = False  # print the commands of what is left to do
archive = ""  # of finished runs (records.py): only draw the study's figures, of these seeds
# Flags of all runs, which may override them: the method is studied as it was published.
SHARED = '--eval_policies=["top_k"]', "--second_visit=False"
RESUME = "--init_from=resume"


class Run(NamedTuple):
    folder: Path
    flags: list  # of train.py
    settings: str  # what its training depends on: flags, config files, and those of its start
    start: Path | None  # the folder of the run from whose checkpoint it starts


class Failure(Exception):
    """A command has failed; the other runs continue."""


class Stopped(Exception):
    """Stopped by a signal."""


# -- what to do ------------------------------------------------------------------------------------
def plan(runs, file, folder):
    """The runs of all seeds, each after the one that it starts from."""
    planned, configs = {}, version(file)
    for name, template in runs.items():
        for seed in seeds:
            out = folder / f"{name}_{seed}"
            starts = [folder / f"{start}_{seed}" for start in re.findall(r"{(\w+)}", template)]
            flags = [file, f"--seed={seed}", *SHARED]
            for flag in template.split():
                flags.append(re.sub(r"{(\w+)}", rf"{folder}/\1_{seed}/checkpoint.pt", flag))
            settings = " ".join([*flags, configs, *(planned[start].settings for start in starts)])
            planned[out] = Run(out, flags, settings, starts[0] if starts else None)
    return list(planned.values())


def version(file):
    """Of the configurations, which build on each other."""
    files = sorted({Path(file), *Path("config").glob("*.py")})
    return f"{zlib.crc32(b''.join(path.read_bytes() for path in files)):08x}"


def training_command(run):
    """The command that completes the run, None if it is complete."""
    settings, checkpoint = run.folder / "settings.txt", run.folder / "checkpoint.pt"
    command = ["train.py", *run.flags, f"--out_dir={run.folder}"]
    if not settings.is_file() or settings.read_text() != run.settings:
        return command
    if (run.folder / "complete").exists():
        return None
    # A checkpoint older than the settings has other ones: train.py was stopped before it could
    # archive it.
    resume = checkpoint.exists() and checkpoint.stat().st_mtime >= settings.stat().st_mtime
    return [*command, RESUME] if resume else command


def script_commands(scripts, run):
    """The commands of the scripts that follow its training."""
    return [[*script.split(), f"--out_dir={run.folder}"] for script in scripts]


def shown_runs(runs):
    """The folders of the runs, except those from which others start."""
    starts = {run.start for run in runs}
    return [run.folder for run in runs if run.folder not in starts]


def archived_runs(runs):
    """The same in the archive, of those that it has. Raises ValueError if there are none."""
    with records.opened(archive) as file:
        there = {name.split("/")[0] for name in file.namelist()}
    names = [shown.name for shown in shown_runs(runs)]
    if not there & {*names}:
        raise ValueError(f"{archive} has no run of the study {study} with seeds {seeds}")
    return [f"{archive}/{name}" for name in names if name in there]


def figure_commands(figures, folders, folder):
    """{a figure's file, without suffix: its command}, for the runs in those folders."""
    shown = ",".join(map(str, folders))
    files = {folder / "figures" / name: flags for name, flags in figures.items()}
    return {
        file: ["-m", "studies.plot", f"--runs={shown}", *flags.split(), f"--out={file}.png"]
        for file, flags in files.items()
    }


# -- doing it --------------------------------------------------------------------------------------
class Processes:
    """Commands in progress, which `stop` ends."""

    def __init__(self):
        self.running, self.stopped = set(), False

    def execute(self, command, output, errors=subprocess.STDOUT):
        """The exit code of `python command` with one thread; output: the file it prints to."""
        env = {"OMP_NUM_THREADS": "1"} | os.environ
        pipes = {"stdout": output, "stderr": errors}
        process = subprocess.Popen([sys.executable, *command], env=env, **pipes)
        self.running.add(process)
        if self.stopped:  # meanwhile
            process.terminate()
        code = process.wait()
        self.running.remove(process)
        if code and self.stopped:
            raise Stopped
        return code

    def stop(self, number, frame):
        self.stopped = True
        for process in self.running.copy():
            process.terminate()


def make_run(run, scripts, processes, start):
    """Train the run if it is not complete, then execute the scripts on it.

    start: the future of the run that it starts from, or None. Raises Failure or Stopped.
    """
    failed = start and start.exception()  # waits for it
    if processes.stopped:
        raise Stopped
    if failed:
        raise Failure(f"{run.folder}: not trained, because {run.start} has failed")
    with Lock(run.folder, "study.lock"):  # before another study writes other settings
        execute(run, scripts, processes)


def execute(run, scripts, processes):
    complete, log = run.folder / "complete", run.folder / "log.txt"
    training = training_command(run)
    if training:
        complete.unlink(missing_ok=True)
        if training[-1] != RESUME:
            (run.folder / "settings.txt").write_text(run.settings)
            log.unlink(missing_ok=True)
    for command in filter(None, [training, *script_commands(scripts, run)]):
        with open(log, "a") as file:
            code = processes.execute(command, file)
        if code:
            raise Failure(f"{log}: exit code {code}: {last_words(log)}")
        if version(run.flags[0]) not in run.settings:
            raise Failure(f"{run.folder}: a configuration has changed: start the study again")
        complete.touch()  # the training is the first of them


def last_words(log):
    """The last line of a log that is not a progress bar."""
    lines = log.read_text(errors="replace").splitlines()
    words = [re.sub(r".*\d%\|.*?\]", "", line).strip() for line in lines]
    return next(filter(None, reversed(words)), "no output")


def make_runs(runs, scripts, processes):
    """Make all runs, `jobs` at once, and report those that fail.

    Raises Stopped, or SystemExit if one has failed.
    """
    failures, futures = 0, {}
    with ThreadPoolExecutor(jobs) as pool, progress_bar(total=len(runs), unit="run") as bar:
        for run in runs:  # they begin in this order: a run never waits for one that has not begun
            start = futures.get(run.start)
            futures[run.folder] = pool.submit(make_run, run, scripts, processes, start)
        for future in as_completed(futures.values()):
            try:
                future.result()
                bar.update()
            except Stopped:
                pass
            except (Failure, OSError, ValueError) as error:
                say(str(error))
                failures += 1
    if processes.stopped:
        raise Stopped
    if failures:
        raise SystemExit(f"{failures} of {len(runs)} runs failed, so there is no figure")


def draw(commands, processes):
    """Draw the figures; their tables go to the terminal and beside them."""
    for file, command in commands.items():
        table = Path(f"{file}.md")
        table.parent.mkdir(parents=True, exist_ok=True)
        with open(table, "w") as output:
            code = processes.execute(command, output, errors=None)
        print(table.read_text(), end="")
        if not table.stat().st_size:
            table.unlink()
        if code:
            raise SystemExit(f"{file}.png: not drawn")


# -- command line ----------------------------------------------------------------------------------
def listing():
    """All studies, as text."""
    fill = textwrap.TextWrapper(96, initial_indent="    ", subsequent_indent="    ").fill
    lines = ["--study=NAME carries one of these out. Times are of seeds 1, 2, 3 on two cores,"]
    lines += ["beside the runs that another study of the same configuration has made.", ""]
    for name, chosen in STUDIES.items():
        count = f"{3 * len(chosen.runs)} runs, {chosen.minutes} minutes"
        lines += [name, fill(chosen.question), fill(f"{chosen.config}: {count}")]
    return "\n".join(lines)


def print_commands(runs, scripts, figures):
    commands = []
    for run in runs:
        commands += [training_command(run), *script_commands(scripts, run)]
    print("export OMP_NUM_THREADS=1")
    for command in filter(None, [*commands, *figures.values()]):
        print(shlex.join(["python", *command]))


def check():
    """Raise ValueError for settings that do not make a study."""
    if study not in STUDIES:
        raise ValueError(f"study {study!r}: expected {', '.join(STUDIES)}")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds {seeds}: expected different integers")
    if config and not Path(config).is_file():
        raise ValueError(f"no config file {config!r}")


def main():
    if not study:
        print(listing())
        return
    with errors_as_messages():
        check()
        chosen = STUDIES[study]
        file = config or chosen.config
        folder = Path(out_dir, Path(file).stem)
        runs = plan(chosen.runs, file, folder)
        folders = archived_runs(runs) if archive else shown_runs(runs)
    runs, figures = [] if archive else runs, figure_commands(chosen.figures, folders, folder)
    if dry_run:
        print_commands(runs, chosen.scripts, figures)
        return
    processes = Processes()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, processes.stop)
    try:
        make_runs(runs, chosen.scripts, processes)
        draw(figures, processes)
    except Stopped:
        raise SystemExit("stopped: the same command resumes from there") from None


if __name__ == "__main__":
    configure(globals())
    main()
