"""Records of finished runs: one archive for a study, in place of a folder for each run.

    python -m studies.records --runs="out/sudoku_mini_*" --out=results/sudoku_mini.zip
    python -m studies.plot --runs=results/sudoku_mini.zip                its runs, all of them
    python -m studies.plot --runs="results/sudoku_mini.zip/mdm_*"        or some

An archive holds what figures and tables are made from (metrics.jsonl and the results beside it, no
weights), under the names of the runs. Runs are added to an existing archive and replace those of
the same name. The same files always make the same bytes.
"""

import contextlib
import fnmatch
import glob
import tempfile
import zipfile
import zlib
from pathlib import Path

from configurator import configure
from engine.files import atomic_path

runs = ""  # comma-separated folders of runs, or patterns of folders
out = ""  # the archive
BEGINNING = 1980, 1, 1, 0, 0, 0  # a zip archive knows no earlier time
LARGEST = 256 << 20  # bytes that an archive may unpack to: it may be a stranger's


@contextlib.contextmanager
def folders(patterns):
    """The folders of the runs that match one of the comma-separated patterns.

    An archive stands for the folder it was made of; its runs exist until the block is left.
    Raises SystemExit if a pattern matches none, or an archive is damaged.
    """
    with tempfile.TemporaryDirectory() as temporary:
        matching = []
        for number, pattern in enumerate(patterns.split(",")):
            archive, ending, inside = pattern.partition(".zip")
            place = pattern
            if ending:  # messages about a run name the archive
                folder = Path(temporary, str(number), Path(archive).name + ending)
                place = f"{folder}/{inside.strip('/') or '*'}"
                with opened(archive + ending) as file:
                    names = fnmatch.filter(file.namelist(), f"{inside.strip('/') or '*'}/*")
                    file.extractall(folder, names)
            files = sorted(glob.glob(f"{place}/metrics.jsonl"))
            if not files:
                raise SystemExit(f"no run matches {pattern!r}: no such folder has a metrics.jsonl")
            matching += [Path(file).parent for file in files]
        yield matching


@contextlib.contextmanager
def opened(archive):
    """The archive as a ZipFile. Raises SystemExit if it is none, or damaged."""
    try:
        if not Path(archive).is_file():  # a pipe may have no end
            raise ValueError("no such file")
        with zipfile.ZipFile(archive) as file:
            if sum(entry.file_size + 4096 for entry in file.infolist()) > LARGEST:
                raise ValueError(f"more than {LARGEST >> 20} MB in an archive of records")
            yield file
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise SystemExit(f"{archive}: {error}") from None


def main():
    if not runs or not out.endswith(".zip"):
        raise SystemExit('expected --runs="out/puma_*,out/mdm_*" --out=FILE.zip')
    kept = {}  # run -> {file: bytes}
    sources = {}  # run -> its folder
    if Path(out).exists():
        with opened(out) as file:
            for entry in file.namelist():
                folder, name = entry.split("/")
                kept.setdefault(folder, {})[name] = file.read(entry)
    with folders(runs) as added:
        for folder in map(Path.resolve, added):
            if (other := sources.setdefault(folder.name, folder)) != folder:
                raise SystemExit(f"{other} and {folder} have the same name: archive one of them")
            files = [folder / "metrics.jsonl", *folder.glob("*[!r].json")]  # not header, tokenizer
            kept[folder.name] = {file.name: file.read_bytes() for file in files}
    with atomic_path(out) as partial, zipfile.ZipFile(partial, "w") as file:
        for folder, name in sorted((run, name) for run, files in kept.items() for name in files):
            entry = zipfile.ZipInfo(f"{folder}/{name}", BEGINNING)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            file.writestr(entry, kept[folder][name], compresslevel=9)
    print(f"{out}: {len(kept)} runs, {Path(out).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    configure(globals())
    main()
