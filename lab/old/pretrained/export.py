"""Write the averaged weights of a run as a folder for others: any run, in Hugging Face's form.

    python -m pretrained.export --out_dir=out/x --folder=FOLDER --half
    python sample.py --out_dir=FOLDER                                    here, on any machine
    python -m pretrained.export --out_dir=out/x --folder=FOLDER      of a run with LoRA: its adapter
    python -m pretrained.export --out_dir=out/x --folder=FOLDER --merge ... base and adapter in one

The architecture is Qwen2's, so `AutoModelForCausalLM.from_pretrained(FOLDER)` loads it without
third-party code; a model written in Dream's form needs Dream's code. A bidirectional model has
`is_causal` false, which transformers 5 respects; transformers 4 needs a 4-D attention mask of
zeros; it has no form for a carry or loops. README.md in the folder is its model card (card.py). The
base of an adapter is the run's `init_from`, which must still exist.
"""

import shutil
from pathlib import Path

from configurator import configure, errors_as_messages
from engine import files
from pretrained import card, hf, lora
from runs.saved import describe, load, open_run

# -- what ----------------------------------------------------------------------------------------
out_dir = ""  # the run
folder = ""  # where to write
merge = False  # for a run with LoRA: add the adapter to the base weights
half = False  # weights in float16, half the size


def main():
    with errors_as_messages():
        if not (out_dir and folder):
            raise ValueError("expected --out_dir=RUN and --folder=FOLDER")
        state = load(out_dir)
        origin = str(state["config"].get("init_from"))
        base = origin.removeprefix("hf:") if origin.startswith("hf:") else None
        if state["config"].get("lora_rank") and "model" in state:
            model, adapters = lora.restore(state)
            if not merge:
                how = f"LoRA adapters of {card.public(base)}, for peft."
                text = card.text(out_dir, state, how)
                with hf.appearing(folder) as partial:
                    adapters.save(partial, base)
                    files.write(partial / "README.md", text)
                finish(how, "adapter_config.json")
                return
            adapters.merge()
        else:
            model = open_run(out_dir).model
        like = base and hf.resolve(base)
        how = loading(hf.described(state["model_args"], like))
        text = card.text(out_dir, state, how)  # before anything is written: what it reads may fail
        model = model.half() if half else model
        with hf.appearing(folder) as partial:
            hf.save(model, state["model_args"], partial, like)
            describe(partial, state, model)
            for file in card.needed(state["config"]):
                shutil.copy(file, partial)
            if not any(partial.glob("tokenizer*.json")):  # transformers would make an empty one
                files.write(partial / "tokenizer.json", "none: see README.md\n")
            if (card_of_base := partial / "README.md").exists():
                card_of_base.rename(partial / "README.base.md")
            files.write(partial / "README.md", text)
        finish(how, "config.json")


def loading(config):
    """How transformers loads the folder of this config.json."""
    if config["model_type"] == "puma":
        return "For sample.py and eval.py alone: transformers has no form for a carry or loops."
    if config["model_type"] == "Dream":
        return "In Dream's form: transformers needs `trust_remote_code=True`."
    seen = "each token sees those before it" if config["is_causal"] else "all tokens see each other"
    row = "i + 1" if config["is_shifted"] else "i"
    return (
        f"In Qwen2's form, for `AutoModelForCausalLM.from_pretrained`: {seen} "
        f"(`is_causal`, heeded by transformers 5), and row i of the logits scores token {row}. The "
        "logit of the mask token is to be ignored."
    )


def finish(how, settings):
    """Print the files."""
    for path in sorted(path for path in Path(folder).iterdir() if path.is_file()):
        print(f"{path.stat().st_size / 1e6:10.2f} MB  {path}")
    print(f"{how.split('. ')[0].rstrip('.')}; {settings} has the settings, README.md the card")


if __name__ == "__main__":
    configure(globals())
    main()
