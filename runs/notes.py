"""What a run says before it trains: the stages of its chains, and what its settings imply."""

from engine.files import say
from puma import value_at


def say_all(config, chains):
    """On settings (keys as in train.py); chains: a ProgressiveUnmasking, or RandomMasking alone."""
    if hasattr(chains, "stages_at"):
        say_stages(config, chains)
        if config["second_visit"] and not chains.second_visit:
            say(f"--method={config['method']} has no second visit, as with --second_visit=False")
    if config["window"] > 1 and not config["carry"]:
        say(f"--window={config['window']} without --carry: {config['window']} passes per update")


def say_stages(config, chains):
    """How many stages a chain has, at first and in the end; what to do if there are only 2."""
    schedule, blocks = config["k_schedule"], config["block_schedule"]
    starts = [max(start, config["chains_from"] or 0) for start, _ in [*schedule, *blocks]]
    parts = []
    for start in sorted({min(starts), max(starts)}):
        length = value_at(blocks, start) if blocks else chains.x0.shape[-1]
        K = value_at(schedule, start)
        parts.append(f"{length} tokens, K = {K}: {chains.stages_at(start)} stages")
    say(f"; from iteration {max(starts)}: ".join(parts))
    if chains.stages_at(max(starts)) == 2:
        most = max(1, length // 4)
        say(f"only 2 stages may teach much less: --k_schedule={most} or less gives at least 4")
