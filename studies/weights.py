"""The averaged weights that a run kept along its training, for the scripts that look into them."""

from runs.saved import kept_weights, load_task, open_run


def kept(folder, dataset=None):
    """The files of a run's weights, in order, or its checkpoint; its configuration; its task.

    Raises ValueError for a run on another dataset, and for a causal model or blocks.
    """
    files = kept_weights(folder)
    saved = open_run(files[-1])
    found = saved.config["dataset"]
    if dataset not in (None, found):
        raise ValueError(f"{folder} was trained on {found}: expected {dataset}")
    if saved.block or saved.model.causal:
        raise ValueError(f"{folder} is causal or in blocks: it has no such chain")
    return files, saved.config, load_task(saved.config)
