"""What a run says before it trains: the stages of its chains, and what its settings imply."""

from engine.files import say
from puma import value_at


def say_all(config, chains, model):
    """On settings (keys as in train.py); chains: a ProgressiveUnmasking, or RandomMasking alone."""
    on_gpu = next(model.parameters()).is_cuda
    if on_gpu and config["compile"] is False and sum(p.numel() for p in model.parameters()) > 5e6:
        say("not compiled: most of an update may go to memory traffic (docs/gpu.md)")
    if config["window"] > 1 and not config["carry"]:
        say(f"--window={config['window']} without --carry: {config['window']} passes per update")
    if not hasattr(chains, "stages_at"):
        return
    if config["second_visit"] and not chains.second_visit:
        say(f"--method={config['method']} has no second visit, as with --second_visit=False")
    end = config["max_iters"]
    K = value_at(config["k_schedule"], end)
    stages = chains.stages_at(end)
    length = chains.x0.shape[-1]
    if config["block_schedule"]:
        length = value_at(config["block_schedule"], end)
    say(f"{length} tokens, K = {K}: {stages} stages")
    if stages == 2:
        say(f"a model may learn much less with 2 stages; --k_schedule={length // 4 or 1} gives 4")
