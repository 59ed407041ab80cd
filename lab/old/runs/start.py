"""What a run starts from: its weights, from scratch or another run's, or its own checkpoint.

Here are the settings that a saved run may change, or must keep; engine/ knows none of them.
"""

import re
from pathlib import Path

import torch

import tasks
from configurator import printable
from engine import checkpoint
from engine.files import say
from engine.processes import local_rank
from model import Transformer

# What may differ when a run is resumed, as may all settings of evaluation.
MAY_CHANGE = (
    "name", "max_iters", "log_interval", "checkpoint_interval", "keep_every", "out_dir", "track",
)  # fmt: skip
ARCHITECTURE = "dim", "layers", "heads", "mlp", "theta", "tied", "carry", "loops"
# What must stay the same even with --init_from=continue: data order, shape of weights.
MUST_KEEP = "seed", "dataset", *ARCHITECTURE, "muon", "lora_rank", "lora_alpha"

# What may differ between the processes of a run, as their machines do.
OF_MACHINES = "out_dir", "data_dir", "data_file", "device", "track"


# -- its own checkpoint ----------------------------------------------------------------------------
def find(folder, config, place):
    """What a run begins from, as `init_from` asks: (saved, changes, origin).

    saved: its checkpoint, None for a new run; changes: {setting: (was, now)} if it continues with
    any; origin: what its weights once started from. Raises ValueError for changes that it cannot
    have, FileNotFoundError without a checkpoint to resume.
    """
    word, _, start = config["init_from"].partition(":")
    path = folder / "checkpoint.pt"
    may_be_new = word == "continue"
    if not may_be_new and config["init_from"] != "resume":
        return None, {}, config["init_from"]
    if may_be_new and not path.exists():
        if place.rank == 0:
            print(f"no {path} yet: starting a new run from {start or 'scratch'}")
        return None, {}, start or "scratch"
    saved = checkpoint.load_whole(path)
    before = saved["config"]
    origin = str(before.get("init_from", "scratch"))
    changes = differences(saved, config | {"init_from": origin}, place)
    if saved["iteration"] > config["max_iters"]:
        raise ValueError(f"max_iters {config['max_iters']}: the run is at {saved['iteration']}")
    was, now = identity(before), identity(config)
    data = {"train_examples", *getattr(tasks.settings_of(config), "_fields", ())} - {*OF_MACHINES}
    allowed = [key for key in changes if was.get(key) == now.get(key) and key not in data]
    resumes = word == "resume"
    if refused := {key: changes[key] for key in changes if resumes or key not in allowed}:
        remedy = "; --init_from=continue allows it" * (resumes and len(allowed) == len(changes))
        raise ValueError(f"a saved run must keep its configuration: {text_of(refused)}{remedy}")
    if changes and place.rank == 0:
        print(f"continuing at iteration {saved['iteration']} with changes: {text_of(changes)}")
    if saved["iteration"] == config["max_iters"] and place.rank == 0:
        print(f"all {saved['iteration']} updates are done: a larger --max_iters goes on")
    return saved, changes, origin


def identity(config):
    """What a run keeps however it continues: an autoregressive one remains so."""
    kept = {key: config.get(key) for key in MUST_KEEP}
    return kept | {"method": config.get("method") == "ar"}


def common(config):
    """What must be the same on all processes."""
    return {key: value for key, value in config.items() if key not in OF_MACHINES}


def differences(saved, config, place):
    """{setting: (saved, now)} of training settings that differ; also processes and device."""
    known = dict.fromkeys([*config, *saved["config"]])  # also settings that no longer exist
    names = [key for key in known if key not in MAY_CHANGE and not str(key).startswith("eval_")]
    now = {key: config.get(key) for key in names}
    now |= {"processes": place.world, "device": place.device.type}
    was = saved["config"] | {"processes": len(saved["ranks"]), "device": saved["device"]}
    return {key: (was.get(key), now[key]) for key in now if was.get(key) != now[key]}


def take_over(queue, ranks):
    """The queue goes on where other processes stopped; the rows of their chains (elastic.py)."""
    from engine import elastic  # only needed by a run that continues with changes

    return elastic.take_over(queue, ranks)


def text_of(changes):
    return printable(", ".join(f"{name} {was} -> {now}" for name, (was, now) in changes.items()))


# -- its weights -----------------------------------------------------------------------------------
def make_model(origin, task, saved, model_args, adapters, device):
    """The model, the part of it that is saved (itself, or its adapters), and its arguments.

    origin: scratch, a RUN as in `from_run`, or hf: and a folder, or NAME@REVISION on the hub;
    saved: a checkpoint to resume, whose weights are loaded later, or None; model_args: as the run's
    settings have them; adapters: rank (0 = all weights are trained) and alpha of LoRA, dtype of the
    frozen weights. Raises ValueError for another origin, or one that does not fit the data.
    """
    name, weights = origin.removeprefix("hf:"), None
    if name != origin:
        from pretrained import finetune

        return finetune.make_model(name, task, saved, model_args, adapters, device)
    if adapters[0] or not (saved or origin == "scratch" or Path(origin).exists()):
        expected = "scratch, resume, continue, a run or hf:FOLDER"
        if adapters[0]:
            expected = "hf:FOLDER, as lora_rank is not 0"
        raise ValueError(f"init_from {origin!r}: expected {expected}")
    if saved:
        model_args = saved["model_args"]
    elif origin != "scratch":
        weights, model_args = from_run(origin, model_args)
    model = Transformer(**model_args).to(device)
    if weights:  # a carry that they do not have begins without effect (carry.py)
        model.load_state_dict(model.state_dict() | weights)
    return model, model, model_args


def folder_of(config):
    return Path(str(config["out_dir"]) or "out/{name}_{method}_{seed}".format_map(config))


def settings_of_run(config):
    """(settings, whole): what a run takes from an earlier one; config: as typed, not yet checked.

    Of the run that resumes or continues all, which flags alone change (whole); of the weights that
    a new run starts from, the architecture; else none. The earlier run may be a stranger's: only
    this command says which judge is executed, and who is told.
    """
    origin, path = str(config["init_from"]), folder_of(config) / "checkpoint.pt"
    if re.match("resume$|continue(:|$)", origin) and path.exists():
        saved = checkpoint.load(path)["config"]
        own = {"out_dir": str(path.parent), "init_from": origin, "track": config["track"]}
        judge = saved.get("eval_judge", "")
        if judge not in ("", "exact") and "eval_judge" not in config:
            how = "--eval_judge=FILE, --eval_judge=exact, or --eval_judge= for the loss alone"
            raise ValueError(
                f"{path} names a judge, {judge!r:.200}, which is not executed: add {how}"
            )
        own["eval_judge"] = config.get("eval_judge", judge)
        note(f"settings as in {path}, but for those in --key=value, and track")
        return saved | own, True
    origin = origin.removeprefix("continue:")
    if origin in ("", "scratch", "resume", "continue") or not Path(origin).exists():
        return {}, False
    from pretrained.hf import complete  # only needed here
    from runs.saved import open_run

    args = complete(open_run(origin).args)
    settings = {key: args[key] for key in ARCHITECTURE}
    shown = ", ".join(f"{key} {value}" for key, value in settings.items())
    note(f"model as in {origin}, which --key=value alone changes: {shown}")
    return settings, False


def note(text):
    if local_rank() == 0:
        say(printable(text))


def pinned(origin):
    """The origin, with the commit of a model on the hub, which the run records and keeps."""
    name = origin.removeprefix("hf:")
    if name == origin or Path(name).is_dir() or re.fullmatch(".*@[0-9a-f]{40}", name):
        return origin
    from pretrained import hf

    commit = hf.resolve(name).name  # the folder's name in the hub's cache
    return f"hf:{name.partition('@')[0]}@{commit}"


def from_run(path, model_args):
    """Averaged weights to start from, and the model_args for them; path: as in saved.open_run.

    If that run was autoregressive, attention becomes bidirectional and logits stay `shifted`. Its
    mask embedding was never trained, so it is set to the mean of all others: "some unknown token".

    Raises ValueError if the architectures differ, but for a carry that is new, or loops.
    """
    from pretrained.hf import complete
    from runs.saved import open_run

    saved = open_run(path)
    if saved.config.get("lora_rank"):
        raise ValueError(
            f"{path} has only adapters: start from the output of pretrained.export --merge"
        )
    theirs = complete(saved.args)
    same = {"causal", "shifted", "loops"} | ({"carry"} if model_args["carry"] else set())
    differ = [key for key in model_args if key not in same and model_args[key] != theirs[key]]
    if differ:
        which = ", ".join(f"{key} {theirs[key]} -> {model_args[key]}" for key in differ)
        flags = ", ".join(f"--{key}" for key in differ)
        of_data = {"vocab_size", "mask_token", "length"} & {*differ}
        remedy = "it was trained on other data" if of_data else f"leave out {flags}"
        raise ValueError(f"{path} has another architecture: {which}; {remedy}")
    weights = saved.model.state_dict()
    if theirs["causal"]:
        embedding = weights["model.embed_tokens.weight"]
        mask = theirs["mask_token"]
        others = torch.arange(len(embedding)) != mask
        embedding[mask] = embedding[others].mean(0)
    return weights, saved.args | model_args | {"shifted": theirs["shifted"]}
