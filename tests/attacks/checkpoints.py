"""Damaged checkpoints: bytes, bits, truncations, valid files of another form, and pickles."""

import json
import os
import pickle
import shutil
import zipfile

import numpy as np
import torch

from tests.attacks.lab import SYSTEM, TINY, Case, answers, bound, printed, weights

SAMPLE = ("sample.py", *SYSTEM, "--out_dir={out}")
RESUME = ("train.py", *TINY, "--out_dir={out}", "--init_from=resume", "--max_iters=8")
NELBO = ("eval.py", *SYSTEM, "--out_dir={out}", "--nelbo", "--masks=2")
SOLVE = ("eval.py", *SYSTEM, "--out_dir={out}", "--reveal=9")
START = ("train.py", *TINY, "--out_dir={out}/new", "--init_from={out}/checkpoint.pt",
         "--max_iters=2")  # fmt: skip
EXPORT = ("-m", "pretrained.export", "--out_dir={out}", "--folder={out}/exported")
TRAJECTORIES = ("-m", "studies.trajectories", "--out_dir={out}", "--puzzles=4", "--device=cpu")
KEPT = ("train.py", *TINY, "--out_dir={out}/new", "--init_from={out}/weights/000004.pt",
        "--max_iters=2")  # fmt: skip
LOAD = """
import sys, torch, checkpoint
from configurator import errors_as_messages
with errors_as_messages():
    state = checkpoint.load(sys.argv[1])
torch.save(state, sys.argv[2])
"""


def commands(lab):
    """{name: (words, result)} of everything that reads checkpoint.pt."""
    return {
        "resume": (RESUME, weights),
        "sample": (SAMPLE, printed),
        "nelbo": (NELBO, bound),
        "eval": (SOLVE, answers),
        "init_from": (START, lambda folder, ended: weights(folder / "new")),
        "export": (EXPORT, exported),
    }


def exported(folder, ended):
    return (folder / "exported/model.safetensors").read_bytes()


def wholes(lab, names):
    """{name: (words, result, Whole)} of those commands on the undamaged run."""
    known = commands(lab)
    return {n: (*known[n], lab.whole(known[n][0], lab.trained, known[n][1])) for n in names}


def with_file(lab, change, name="checkpoint.pt"):
    """Arranges a copy of the run whose file is change(bytes) of the good one."""

    def arrange(folder):
        shutil.copytree(lab.trained, folder, dirs_exist_ok=True)
        (folder / name).write_bytes(change((lab.trained / name).read_bytes()))

    return arrange


def byte_changed(at, value):
    return lambda data: data[:at] + bytes([data[at] ^ value]) + data[at + 1 :]


def large_records(path):
    """(start, end) of the tensors of 1,000 bytes and more in the file."""
    places = []
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
            begin = info.header_offset + 30 + name + extra
            if "/data/" in info.filename and info.file_size >= 1000:
                places.append((begin, begin + info.file_size))
    return places


def bytes_anywhere(lab, rng):
    size = (lab.trained / "checkpoint.pt").stat().st_size
    known = wholes(lab, ("resume", "sample", "nelbo"))
    for _ in range(60):
        at, value = rng.randrange(size), rng.randrange(1, 256)
        for name, (words, result, whole) in known.items():
            arrange = with_file(lab, byte_changed(at, value))
            yield Case(f"{name}, byte {at} ^ {value}", words, arrange, result, whole,
                       names="checkpoint.pt")  # fmt: skip


def bytes_of_weights(lab, rng):
    places = large_records(lab.trained / "checkpoint.pt")
    ((words, result, whole),) = wholes(lab, ("resume",)).values()
    for _ in range(60):
        begin, end = rng.choice(places)
        at, value = rng.randrange(begin, end), rng.randrange(1, 256)
        yield Case(f"resume, byte {at} ^ {value} of a tensor", words,
                   with_file(lab, byte_changed(at, value)), result, whole,
                   names="checkpoint.pt")  # fmt: skip


def bits(lab, rng):
    """Single bits: are the contents that checkpoint.load gives those that were saved?"""
    words = ("-c", LOAD, "{out}/checkpoint.pt", "{out}/loaded.pt")
    load = lambda folder, ended: torch.load(folder / "loaded.pt", weights_only=True)  # noqa: E731
    whole = lab.whole(words, lab.trained, load)
    size = (lab.trained / "checkpoint.pt").stat().st_size
    for _ in range(120):
        at, bit = rng.randrange(size), rng.randrange(8)
        arrange = with_file(lab, byte_changed(at, 1 << bit))
        yield Case(f"bit {bit} of byte {at}", words, arrange, load, whole, names="checkpoint.pt")


def truncated(lab, rng):
    size = (lab.trained / "checkpoint.pt").stat().st_size
    known = wholes(lab, ("resume", "sample", "nelbo"))
    for length in [0, 1, 4, size - 1, *(rng.randrange(size) for _ in range(56))]:
        for name, (words, result, whole) in known.items():
            arrange = with_file(lab, lambda data, length=length: data[:length])
            yield Case(f"{name}, {length} of {size} bytes", words, arrange, result, whole,
                       names="checkpoint.pt", after=unchanged(length))  # fmt: skip


def unchanged(length):
    """A damaged checkpoint is not overwritten by what refuses it."""

    def after(folder, ended):
        kept = (folder / "checkpoint.pt").stat().st_size == length
        return None if kept or ended.status == 0 else "lost"

    return after


# -- valid files of another form -------------------------------------------------------------------
FIRST = "model.layers.0.self_attn.q_proj.weight"


def edited(change):
    """A file of what `change` makes of the loaded checkpoint, in place or as its value."""

    def edit(folder):
        path = folder / "checkpoint.pt"
        state = torch.load(path, weights_only=True)
        new = change(state)
        torch.save(state if new is None else new, path)  # None: it was changed in place

    return edit


def without(*keys):
    return lambda state: {key: value for key, value in state.items() if key not in keys}


def each_weights(change):
    """Changes the model's weights and the averaged ones alike."""

    def edit(state):
        for name in ("model", "ema"):
            change(state[name])

    return edit


def first_name(tensors):
    return FIRST if FIRST in tensors else next(name for name in tensors if "layers" in name)


def fill(value):
    return each_weights(lambda w: [t.fill_(value) for t in w.values()])


def one_entry(value):
    return each_weights(lambda w: w[first_name(w)].view(-1).__setitem__(0, value))


def replaced(make):
    return each_weights(lambda w: w.__setitem__(first_name(w), make(w[first_name(w)])))


def put(**values):
    return lambda state: state.update(values)


def put_in(key, **values):
    return lambda state: state[key].update(values)


def spoil_optimizer(state):
    for each in state["optimizer"]["state"].values():
        for moment in ("exp_avg", "exp_avg_sq"):
            each[moment].fill_(torch.nan)


def take_from(get, key):
    """Removes a key of the dictionary that get(state) is."""

    def edit(state):
        del get(state)[key]

    return edit


FORMS = {
    "a list": lambda state: [1, 2],
    "a tensor": lambda state: torch.zeros(3),
    "a number": lambda state: 7,
    "nothing": lambda state: {},
    "no model, no ema": without("model", "ema"),
    "no model_args": without("model_args"),
    "no config": without("config"),
    "no ranks": without("ranks"),
    "no optimizer": without("optimizer"),
    "no iteration": without("iteration"),
    "no data": without("data"),
    "a missing weight": each_weights(lambda w: w.pop(first_name(w))),
    "an extra weight": each_weights(lambda w: w.update(extra=torch.zeros(2))),
    "a misshapen weight": replaced(lambda t: t[:-1].clone()),
    "a weight that is a list": replaced(lambda t: [1.0, 2.0]),
    "an unknown model_args": put_in("model_args", unknown=3),
    "model_args of another size": put_in("model_args", dim=64),
    "model_args of text": put_in("model_args", dim="32"),
    "model_args enormous": put_in("model_args", layers=10**6),
    "NaN weights": fill(torch.nan),
    "one NaN": one_entry(torch.nan),
    "one infinity": one_entry(torch.inf),
    "half precision": each_weights(lambda w: w.update({k: t.half() for k, t in w.items()})),
    "whole numbers": each_weights(lambda w: w.update({k: t.long() for k, t in w.items()})),
    "iteration is text": put(iteration="four"),
    "iteration is negative": put(iteration=-3),
    "config is a list": put(config=["a"]),
    "ranks is empty": put(ranks=[]),
    "ranks is a number": put(ranks=3),
    "one rank too many": lambda state: state.update(ranks=state["ranks"] * 2),
    "a rank without its stream": take_from(lambda state: state["ranks"][0], "stream"),
    "random state cut off": lambda state: state["ranks"][0].update(cpu=torch.zeros(3).byte()),
    "optimizer without its state": take_from(lambda state: state["optimizer"], "state"),
    "optimizer of other groups": lambda state: state["optimizer"].update(param_groups=[]),
    "optimizer with NaN": spoil_optimizer,
    "another fingerprint": put(data=[256, 1]),
    "block is text": put(block="x"),
}  # fmt: skip


def forms(lab, rng):
    for name, (words, result, whole) in wholes(lab, commands(lab)).items():
        for form, change in FORMS.items():

            def arrange(folder, change=change):
                shutil.copytree(lab.trained, folder, dirs_exist_ok=True)
                edited(change)(folder)

            yield Case(f"{name}: {form}", words, arrange, result, whole, names="checkpoint")


def kept(lab, rng):
    """weights/*.pt, which a run keeps: read by trajectories and by init_from."""
    name = "weights/000004.pt"
    size = (lab.trained / name).stat().st_size
    for words, result in ((TRAJECTORIES, table_of), (KEPT, lambda f, e: weights(f / "new"))):
        whole = lab.whole(words, lab.trained, result)
        which = "trajectories" if words is TRAJECTORIES else "init_from"
        changes = [("empty", lambda data: b""), ("half", lambda data: data[: len(data) // 2])]
        places = [(rng.randrange(size), rng.randrange(1, 256)) for _ in range(18)]
        changes += [(f"byte {at} ^ {value}", byte_changed(at, value)) for at, value in places]
        for change, make in changes:
            arrange = with_file(lab, make, name)
            yield Case(f"{which}: {change}", words, arrange, result, whole, names="000004.pt")


def table_of(folder, ended):
    found = json.loads((folder / "trajectories.json").read_text())
    return {key: found[key] for key in ("iterations", "solved", "d_abs", "steps")}


# -- code in files ---------------------------------------------------------------------------------
class Evil:
    """Unpickled, it runs a shell command that leaves a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


class EvilEval(Evil):
    """The same through Python's own eval."""

    def __reduce__(self):
        return eval, (f"open({str(self.marker)!r}, 'w')",)


def pickled(kind, protocol, path, marker):
    path.write_bytes(pickle.dumps({"model": kind(marker)}, protocol=protocol))


def saved_by_torch(kind, new, path, marker):
    torch.save({"model": kind(marker)}, path, _use_new_zipfile_serialization=new)


def as_array(kind, path, marker):
    np.save(path.with_suffix(".npy"), np.array([kind(marker)], object), allow_pickle=True)
    path.with_suffix(".npy").rename(path)


def pickles(lab, rng):
    writers = {
        f"{kind.__name__}, pickle {protocol}": (
            lambda path, marker, k=kind, p=protocol: pickled(k, p, path, marker)
        )
        for kind in (Evil, EvilEval) for protocol in (0, 2, 4)
    }  # fmt: skip
    for new in (True, False):
        writers[f"torch.save, zip {new}"] = lambda p, m, new=new: saved_by_torch(Evil, new, p, m)
    targets = {
        "resume": (RESUME, "checkpoint.pt"), "sample": (SAMPLE, "checkpoint.pt"),
        "init_from": (KEPT, "weights/000004.pt"),
    }  # fmt: skip
    for name, (words, target) in targets.items():
        for how, write in writers.items():
            yield evil(lab, f"{name}: {how}", words, target, write)
    data = ("train.py", *TINY, "--out_dir={out}/new", "--data_file={out}/evil.npy")
    steps = ("data/sudoku/prepare.py", "--source={out}/evil.npy", "--out={out}/made.npy")
    for name, words in (("data_file", data), ("prepare", steps)):
        for how, write in (
            ("object array", lambda p, m: as_array(Evil, p, m)),
            ("pickle", lambda p, m: pickled(Evil, 2, p, m)),
        ):
            yield evil(lab, f"{name}: {how}", words, "evil.npy", write)


def evil(lab, name, words, target, write):
    def arrange(folder):
        shutil.copytree(lab.trained, folder, dirs_exist_ok=True)
        write(folder / target, folder / "executed")

    def after(folder, ended):
        return "silent" if (folder / "executed").exists() else None

    return Case(name, words, arrange, must="refuse", after=after)


GROUPS = {
    "bytes": bytes_anywhere, "weights": bytes_of_weights, "bits": bits, "truncated": truncated,
    "forms": forms, "kept": kept, "pickles": pickles,
}  # fmt: skip
