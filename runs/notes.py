"""What a run says before it trains: the stages of its chains, and what its settings imply."""

from engine.files import say


def say_all(config, chains):
    """On settings (keys as in train.py); chains: a ProgressiveUnmasking, or RandomMasking alone."""
    if config["window"] > 1 and not config["carry"]:
        say(f"--window={config['window']} without --carry: {config['window']} passes per update")
    if not hasattr(chains, "stages_at"):
        return
    if config["second_visit"] and not chains.second_visit:
        say(f"--method={config['method']} has no second visit, as with --second_visit=False")
    length, (*_, K) = chains.x0.shape[-1], [K for _, K in config["k_schedule"]]
    stages = chains.stages_at(config["max_iters"])  # in the end
    what = "blocks" if config["block_schedule"] else f"{length} tokens"
    say(f"{what}, K = {K}: {stages} stages")
    if stages == 2:
        say(f"only 2 stages may teach much less; --k_schedule={max(1, length // 4)} gives 4")
