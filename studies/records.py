"""Records of finished runs: one archive for a study, in place of a folder for each run.

    python -m studies.records --runs="out/sudoku_mini_*" --out=results/sudoku_mini.zip
    python -m studies.plot --runs=results/sudoku_mini.zip                its runs, all of them
    python -m studies.plot --runs="results/sudoku_mini.zip/mdm_*"        or some

An archive holds what figures and tables are made from (metrics.jsonl and the results beside it, no
weights), under the names of the runs. Runs are added to an existing archive and replace those of
the same name. The same files always make the same bytes.
"""

import contextlib
import glob
import re
import tempfile
import zipfile
from pathlib import Path

from configurator import configure
from engine.files import atomic_path

runs = ""  # comma-separated folders of runs, or patterns of folders
out = ""  # the archive
KEPT = "metrics.jsonl", "*.json"
BEGINNING = 1980, 1, 1, 0, 0, 0  # a zip archive knows no earlier time


@contextlib.contextmanager
def folders(patterns):
    """The folders of the runs that match one of the comma-separated patterns.

    An archive stands for the folder it was made of; its runs exist until the block is left.
    Raises SystemExit if a pattern matches none, or an archive is damaged.
    """
    with contextlib.ExitStack() as until_the_end:
        found = []
        for pattern in patterns.split(","):
            archive, ending, inside = pattern.partition(".zip")
            if ending:
                folder = until_the_end.enter_context(unpacked(Path(archive + ending)))
                files = sorted(glob.glob(f"{folder}/{inside.strip('/') or '*'}/metrics.jsonl"))
            else:
                files = sorted(glob.glob(f"{pattern}/metrics.jsonl"))
            if not files:
                raise SystemExit(f"no run matches {pattern!r}: no such folder has a metrics.jsonl")
            found += [Path(file).parent for file in files]
        yield found


@contextlib.contextmanager
def unpacked(archive):
    """A folder with what the archive holds, as long as the block lasts."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, archive.name)  # messages about a run name the archive
        for name, data in read(archive).items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
        yield place


def read(archive):
    """The files of an archive, {"run/file": bytes}. Raises SystemExit if it is not one."""
    try:
        with zipfile.ZipFile(archive) as opened:
            names = [entry.filename for entry in opened.infolist()]
            plain = re.compile(r"[^/\\]+/[^/\\]+")
            strange = [n for n in names if not plain.fullmatch(n) or {".", ".."} & {*n.split("/")}]
            if strange:
                raise SystemExit(f"{archive} has {strange[0]!r}: expected RUN/FILE")
            return {name: opened.read(name) for name in names}
    except FileNotFoundError:
        raise SystemExit(f"{archive}: no such file") from None
    except Exception as error:  # zipfile's are of many kinds: damaged, encrypted, not supported
        raise SystemExit(f"{archive}: {str(error) or type(error).__name__}") from None


def write(archive, files):
    """files: as `read` returns them."""
    with atomic_path(archive) as partial, zipfile.ZipFile(partial, "w") as opened:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, BEGINNING)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            opened.writestr(entry, files[name], compresslevel=9)


def main():
    if not runs or not out.endswith(".zip"):
        raise SystemExit('expected --runs="out/puma_*,out/mdm_*" --out=FILE.zip')
    files, taken = read(out) if Path(out).exists() else {}, {}
    with folders(runs) as found:
        for folder in found:
            name = folder.name
            if (other := taken.setdefault(name, folder)).resolve() != folder.resolve():
                raise SystemExit(f"{other} and {folder} have the same name: archive one of them")
            files = {key: data for key, data in files.items() if key.split("/")[0] != name}
            for pattern in KEPT:
                for file in folder.glob(pattern):
                    files[f"{name}/{file.name}"] = file.read_bytes()
    write(Path(out), files)
    kept = len({name.split("/")[0] for name in files})
    print(f"{out}: {kept} runs, {Path(out).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    configure(globals())
    main()
