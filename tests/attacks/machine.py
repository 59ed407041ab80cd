"""What goes wrong under a run: disks that are full or read-only, folders that vanish."""

import contextlib
import shutil
import subprocess
import time

from tests.attacks.checkpoints import EXPORT, NELBO, RESUME, SOLVE
from tests.attacks.command import Ended
from tests.attacks.lab import TINY, Case, contents, placed, same, weights

LONG = (*TINY, "--max_iters=400", "--eval_interval=400", "--checkpoint_interval=50")
NEW = ("train.py", *LONG, "--out_dir={out}/new")
AGAIN = (*NEW, "--init_from=resume")
SHORT = ("train.py", *TINY, "--max_iters=4", "--checkpoint_interval=1", "--out_dir={out}/new")
FILE_LIMIT = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
"""
FAILING = """
import os
real, calls = os.{name}, [0]

def fails(*args, **options):
    calls[0] += 1
    if calls[0] >= {at}:
        raise OSError({number}, os.strerror({number}), "FILE")
    return real(*args, **options)

os.{name} = fails
"""


def reached(out, iteration):
    """Whether the record of a run has this iteration."""
    with contextlib.suppress(OSError):
        return f'"iter": {iteration},' in (out / "metrics.jsonl").read_text()
    return False


def until(condition, process, seconds=60):
    """Wait until the condition holds or the process ends."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.alive() and not condition():
        time.sleep(0.003)


def joined(*ended, status=None):
    """One Ended of several commands; status None: that of the first which is not 0."""
    codes = [each.status for each in ended]
    if status is None:
        status = next((code for code in codes if code != 0), 0)
    if None in codes:
        status = None
    return Ended(
        status, sum(each.seconds for each in ended),
        "".join(each.output for each in ended), "".join(each.errors for each in ended),
    )  # fmt: skip


# -- disk ------------------------------------------------------------------------------------------
@contextlib.contextmanager
def mounted(lab, size):
    """A disk of that size, as mount understands it."""
    disk = lab.folder / "disk"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def remount(disk, options):
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True, capture_output=True)


def can_mount(lab):
    try:
        with mounted(lab, "1m"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def fill_up(disk):
    """Leave no byte; the file that takes the room."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), open(filler, "ab", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return filler


def on_disk(size, body):
    """An act: body(lab, disk) -> Ended; what is on the disk then is kept in the case's folder."""

    def act(lab, folder):
        with mounted(lab, size) as disk:
            ended = body(lab, disk)
            shutil.copytree(disk, folder / "disk", symlinks=True)
        return ended

    return act


def plain(*words):
    return lambda lab, disk: lab.run(*placed(words, disk))


def with_run(lab, words, full=True):
    """Acts on a copy of the trained run, on a disk that has no room left; then with room."""

    def body(lab, disk):
        shutil.copytree(lab.trained, disk, dirs_exist_ok=True)
        filler = fill_up(disk)
        first = lab.run(*placed(words, disk))
        filler.unlink()
        if not full:
            return first
        again = lab.run(*placed(words, disk))
        return joined(first, again, status=first.status or 99)._replace(
            errors=first.errors + (again.errors if again.status else "")
        )

    return body


def resumed(lab, disk):
    """No room for the second checkpoint; then there is, and the run goes on."""
    first = lab.run(*placed(SHORT, disk))
    remount(disk, "size=4m")
    again = lab.run(*placed((*SHORT, "--init_from=resume"), disk))
    return joined(first, again, status=again.status) if first.status else first


def filled_while_running(lab, disk):
    with lab.start(*placed(NEW, disk)) as process:
        until(lambda: reached(disk / "new", 60), process)
        fill_up(disk)
        return process.wait(lab.patience)


def read_only_while_running(lab, disk):
    with lab.start(*placed(NEW, disk)) as process:
        until(lambda: reached(disk / "new", 60), process)
        for _ in range(200):  # it is refused while a file is open
            with contextlib.suppress(subprocess.CalledProcessError):
                remount(disk, "ro")
                break
        return process.wait(lab.patience)


def read_only(lab, disk):
    remount(disk, "ro")
    return lab.run(*placed(SHORT, disk))


def good_is_left(folder, ended):
    """A checkpoint that can be read, and nothing temporary."""
    with contextlib.suppress(Exception):
        contents(folder / "disk/new/checkpoint.pt")
        return "lost" if [*folder.glob("disk/new/**/*.tmp")] else None
    return "lost"


def nothing_half(folder, ended):
    return "lost" if [*folder.glob("**/*.tmp")] or [*folder.glob("**/*.partial")] else None


def old_is_whole(lab):
    """The run that was there before, in its place or archived."""

    def after(folder, ended):
        known = weights(lab.trained)
        for path in folder.glob("disk/**/checkpoint.pt"):
            with contextlib.suppress(Exception):
                if same(contents(path), known):
                    return None
        return "lost"

    return after


def disks(lab, rng):
    if can_mount(lab):
        yield from mounted_disks(lab)
    else:
        print("no right to mount: cases on a full disk are left out")
    yield from limited_files(lab)


def mounted_disks(lab):
    whole = lab.whole(SHORT, None, lambda folder, ended: weights(folder / "new"))
    result = lambda folder, ended: weights(folder / "disk/new")  # noqa: E731
    for size in ("4k", "16k", "64k", "150k"):
        yield case(f"new run, {size}", size, plain(*SHORT), nothing_half)
    for size in ("260k", "300k", "340k"):
        yield case(f"room for one checkpoint, {size}", size, plain(*SHORT), good_is_left)
        yield case(f"the same with room later, {size}", size, resumed, must="same", whole=whole,
                   result=result)  # fmt: skip
    keep = (*SHORT, "--keep_every=1")
    yield case("room for some weights", "560k", plain(*keep), good_is_left)
    yield case("full while it runs", "1m", filled_while_running, good_is_left)
    for name, words in (("eval", SOLVE), ("nelbo", NELBO), ("export", EXPORT), ("resume", RESUME)):
        yield case(f"{name} on a full disk, then with room", "2m", with_run(lab, words),
                   nothing_half)  # fmt: skip
    over = ("train.py", *TINY, "--max_iters=4", "--out_dir={out}")
    yield case("a new run over an old one, full", "2m", with_run(lab, over, full=False),
               old_is_whole(lab))  # fmt: skip
    words = ("data/sudoku/prepare.py", "--box=(2,2)", "--count=3000", "--out={out}/p.npy")
    yield case("prepare.py", "40k", plain(*words), nothing_half)
    yield case("read-only", "1m", read_only)
    yield case(
        "read-only while it runs", "1m", read_only_while_running, good_is_left, must="any"
    )  # fmt: skip  (refused, where the run has its lock open for writing)


def case(name, size, body, after=lambda folder, ended: None, must="refuse", **more):
    return Case(name, (), act=on_disk(size, body), must=must, after=after, **more)


def limited_files(lab):
    """Files that cannot grow, and calls that fail."""

    def no_cache(pattern):
        return lambda folder, ended: "lost" if [*lab.tree.glob(pattern)] else None

    clues, text = "--clues=17", ("--dataset=text", "--text_length=131", "--k_schedule=[(0,30)]")
    yield Case(
        "puzzles that cannot be kept",
        (*SHORT, clues),
        must="refuse",
        prelude=FILE_LIMIT.format(size=5000),
        after=no_cache("data/**/*clues17*"),
    )
    yield Case("word problems that cannot be kept", (*SHORT, *text), must="refuse",
               prelude=FILE_LIMIT.format(size=50000),
               after=no_cache("data/wordproblems/**/*.tmp"))  # fmt: skip
    for size in (100, 1000, 100_000):
        yield Case(f"files of {size} bytes", SHORT, must="refuse", after=nothing_half,
                   prelude=FILE_LIMIT.format(size=size))  # fmt: skip
    for name, number in (("fsync", 5), ("fsync", 28), ("replace", 13), ("replace", 28)):
        for at in (1, 3):
            yield Case(f"os.{name} fails with {number}, call {at}", SHORT, must="refuse",
                       prelude=FAILING.format(name=name, at=at, number=number),
                       after=nothing_half)  # fmt: skip


# -- the folder of a run ---------------------------------------------------------------------------
def folders(lab, rng):
    new = lambda folder, ended: weights(folder / "new")  # noqa: E731
    for name, arrange, must in (
        ("a file", lambda f: (f / "new").write_text("x"), "refuse"),
        ("in a file", lambda f: (f / "new").symlink_to("/etc/passwd"), "refuse"),
        ("a link to nowhere", lambda f: (f / "new").symlink_to(f / "gone"), "any"),
        ("a link to a folder", lambda f: linked(f), "accept"),
        (
            "with a folder checkpoint.pt",
            lambda f: (f / "new/checkpoint.pt").mkdir(parents=True),
            "any",
        ),
        (
            "with a folder metrics.jsonl",
            lambda f: (f / "new/metrics.jsonl").mkdir(parents=True),
            "any",
        ),
        ("with a file weights", lambda f: with_file(f / "new/weights"), "any"),
        ("with a link checkpoint.pt", lambda f: link_checkpoint(f), "any"),
        ("with a foreign .tmp", lambda f: with_file(f / "new/checkpoint.pt.1.tmp"), "accept"),
    ):
        words = (*SHORT, "--keep_every=2")
        yield Case(f"out_dir {name}", words, arrange, new, must=must)
    for name, path, must in (
        ("300 letters", "{out}/" + "x" * 300, "refuse"), ("umlauts", "{out}/ä ö", "accept"),
        ("a line end", "{out}/a\nb", "accept"), ("in /proc", "/proc/1/x", "refuse"),
        ("a pattern", "{out}/[a]*", "accept"),
    ):  # fmt: skip
        words = (*SHORT[:-1], f"--out_dir={path}")
        yield Case(f"out_dir {name}", words, must=must)
    yield from moving(lab)


def linked(folder):
    (folder / "there").mkdir()
    (folder / "new").symlink_to(folder / "there")


def with_file(path):
    path.parent.mkdir(parents=True)
    path.write_text("x")


def link_checkpoint(folder):
    (folder / "new").mkdir()
    (folder / "new/checkpoint.pt").symlink_to(folder / "gone")


def moving(lab):
    whole = lab.whole(NEW, None, lambda folder, ended: weights(folder / "new"))
    result = lambda folder, ended: weights(folder / "new")  # noqa: E731
    for name, disturb in (
        ("deleted", lambda out: shutil.rmtree(out)),
        ("emptied", lambda out: [path.unlink() for path in out.iterdir()]),
        ("moved away", lambda out: out.rename(out.with_name("moved"))),
        ("moved away and back", away_and_back),
        ("replaced by a file", lambda out: (shutil.rmtree(out), out.write_text("x"))),
        ("deleted but for the checkpoint", lambda out: (out / "metrics.jsonl").unlink()),
    ):
        for iteration in (20, 210):

            def act(lab, folder, disturb=disturb, iteration=iteration):
                out = folder / "new"
                with lab.start(*placed(NEW, folder)) as process:
                    until(lambda: reached(out, iteration), process)
                    disturbed(disturb, out)
                    return process.wait(lab.patience)

            yield Case(f"{name} at {iteration}", (), act=act, whole=whole, result=result,
                       after=weights_left)  # fmt: skip


def disturbed(disturb, out):
    for _ in range(50):  # the run writes at the same time
        with contextlib.suppress(OSError):
            disturb(out)
            return


def away_and_back(out):
    other = out.with_name("moved")
    out.rename(other)
    time.sleep(0.3)
    if out.exists():  # made anew in the meantime
        shutil.copytree(other, out, dirs_exist_ok=True)
    else:
        other.rename(out)


def weights_left(folder, ended):
    """Somewhere there is a checkpoint to go on from."""
    for path in folder.glob("**/checkpoint.pt"):
        with contextlib.suppress(Exception):
            contents(path)
            return None
    return "lost"


GROUPS = {"disks": disks, "out_dir": folders}
