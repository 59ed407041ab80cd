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
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path

from configurator import configure
from engine.files import atomic_path

runs = ""  # comma-separated folders of runs, or patterns of folders
out = ""  # the archive
LARGEST = 1 << 28  # bytes that an archive may unpack to
BEGINNING = 1980, 1, 1, 0, 0, 0  # a zip archive knows no earlier time


@contextlib.contextmanager
def folders(patterns):
    """The folders of the runs that match one of the comma-separated patterns.

    An archive stands for the folder it was made of; its runs exist until the block is left.
    Raises SystemExit if a pattern matches none, or an archive is damaged.
    """
    with tempfile.TemporaryDirectory() as temporary:
        matching = []
        for pattern in patterns.split(","):
            archive, ending, inside = pattern.partition(".zip")
            place = pattern
            if ending:  # messages about a run name the archive
                folder = Path(temporary, str(len(matching)), Path(archive).name + ending)
                unpack(archive + ending, folder)
                place = f"{folder}/{inside.strip('/') or '*'}"
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


def unpack(archive, folder):
    with opened(archive) as file:
        file.extractall(folder)  # never outside the folder, whatever the names in the archive


def main():
    if not runs or not out.endswith(".zip"):
        raise SystemExit('expected --runs="out/puma_*,out/mdm_*" --out=FILE.zip')
    with tempfile.TemporaryDirectory() as temporary:
        if Path(out).exists():
            unpack(out, temporary)
        with folders(runs) as added:
            copy_records(added, Path(temporary))
        write(Path(out), temporary)


def copy_records(added, place):
    """Copy the records of runs to a folder, in place of those of the same name.

    Raises SystemExit for two added runs of one name.
    """
    sources = {}
    for folder in map(Path.resolve, added):
        if (other := sources.setdefault(folder.name, folder)) != folder:
            raise SystemExit(f"{other} and {folder} have the same name: archive one of them")
    for name, folder in sources.items():
        shutil.rmtree(place / name, ignore_errors=True)
        (place / name).mkdir()
        for file in [folder / "metrics.jsonl", *folder.glob("*[!r].json")]:  # not header, tokenizer
            shutil.copy(file, place / name)


def write(archive, folder):
    """An archive of the folders of runs in a folder."""
    with atomic_path(archive) as partial, zipfile.ZipFile(partial, "w") as file:
        paths = sorted(Path(folder).glob("*/*"))
        for path in paths:
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), BEGINNING)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            file.writestr(entry, path.read_bytes(), compresslevel=9)
    kept = len({path.parent for path in paths})
    print(f"{archive}: {kept} runs, {archive.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    configure(globals())
    main()
