"""Write the weights of a run as a Hugging Face folder, which `transformers` or peft loads.

    python -m pretrained.export --out_dir=out/x --folder=FOLDER      the averaged weights
    python -m pretrained.export --out_dir=out/x --folder=FOLDER      of a run with LoRA: its adapter
    python -m pretrained.export --out_dir=out/x --folder=FOLDER --merge ... base and adapter in one

A bidirectional model that is written as Qwen2 needs a 4-D attention mask of zeros in
transformers 4. The base of an adapter is where `init_from` of the run says: it must still be there.
"""

from pathlib import Path

import checkpoint
from configurator import configure, errors_as_messages
from pretrained import hf, lora

# -- what ----------------------------------------------------------------------------------------
out_dir = ""  # the run
folder = ""  # where to write
merge = False  # of a run with LoRA: add the adapter to the base weights


def main():
    with errors_as_messages():
        if not (out_dir and folder):
            raise ValueError("expected --out_dir=RUN and --folder=FOLDER")
        path = Path(out_dir) / "checkpoint.pt"
        state = checkpoint.load(path)
        origin = state["config"]["init_from"]
        base = origin.removeprefix("hf:") if origin.startswith("hf:") else None
        if not state["config"].get("lora_rank"):
            model = checkpoint.load_model(path).model
        else:
            model, adapters = lora.restore(state)
            if not merge:
                adapters.save(folder, base)
                return
            adapters.merge()
        hf.save(model, state["model_args"], folder, base and hf.resolve(base))


if __name__ == "__main__":
    configure(globals())
    main()
