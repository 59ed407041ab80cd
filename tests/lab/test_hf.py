"""lab/hf.py on tiny random models of five families, against loops written by hand."""

import copy
import itertools
import json
import re
import runpy
import shutil
import subprocess
import sys
from unittest.mock import Mock, PropertyMock, patch

import pytest
import torch
import torch.nn.functional as F
from conftest import ENV, ROOT, same, write_lines
from safetensors.torch import save_file
from torch.utils.data import TensorDataset

pytest.importorskip("accelerate")
import tokenizers
import transformers

import policies
import puma
import sample
from lab import hf, trainer
from loss import objective

V, L, MASK = 90, 12, 89
SIZE = dict(vocab_size=V, hidden_size=16, intermediate_size=32, num_hidden_layers=2)
SIZE |= dict(num_attention_heads=2, max_position_embeddings=32, pad_token_id=0, is_causal=False)
GROUPS = SIZE | dict(num_key_value_heads=1)
FAMILIES = {
    "bert": transformers.BertConfig(**SIZE, hidden_dropout_prob=0.1),
    "roberta": transformers.RobertaConfig(**SIZE | {"pad_token_id": 1}),
    "modernbert": transformers.ModernBertConfig(**SIZE, attn_implementation="eager"),
    "qwen2": transformers.Qwen2Config(**GROUPS),
    "llama": transformers.LlamaConfig(**GROUPS, rope_theta=50.0, rms_norm_eps=0.1),
}
SHIFTED = "qwen2", "llama"
torch.manual_seed(0)
GIVEN = torch.arange(L) < torch.randint(1, 5, (60, 1))
ROWS = TensorDataset(torch.randint(1, MASK, (60, L)), GIVEN)


def make(family):
    """A random model that is surer of some tokens than of others."""
    torch.manual_seed(1)
    kinds = transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM
    net = kinds[family in SHIFTED].from_config(copy.deepcopy(FAMILIES[family]))
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(4 if p.dim() > 1 else 1)
    return net


def trained(net, folder, steps=3, accum=1, method="puma", bf16=False, **how):
    args = transformers.TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2,
        gradient_accumulation_steps=accum, logging_steps=1, use_cpu=True, disable_tqdm=True,
        seed=5, lr_scheduler_type="constant", bf16=bf16, save_steps=3,
    )  # fmt: skip
    how = {"shift": net.config.model_type in SHIFTED, "K": 3, "tau": 0.3} | how
    run = hf.PumaTrainer(net, args, ROWS, MASK, method=method, **how)
    run.train()
    return [line["loss"] for line in run.state.log_history if "loss" in line]


def by_hand(net, steps, accum, buffer, rank):
    """Losses from full logits; of PUMA, or with a buffer of PUMA+; of the last process."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.0)
    count = max(1, buffer) * accum
    puma.draw_from(5, rank, 0)
    how = puma.Queue(ROWS, 4, "cpu", 5, rank, rank + 1), MASK
    firsts = range(rank * count * 4, (rank + 1) * count * 4, 4)
    chains = [puma.ProgressiveUnmasking(*how, [(0, 3)], 0.3, first) for first in firsts]
    masks = [puma.RandomMasking(*how)] * accum if buffer else []
    streams = itertools.cycle(masks + chains)  # at most three updates on chains
    net.train()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(0)
        for part in range(accum):
            puma.draw_from(5, rank, 1 + step * accum + part)
            stream = next(streams)
            x, x0, hidden = stream.batch(step)
            logits = net(input_ids=x).logits.clone()
            if net.config.model_type in SHIFTED:
                logits = torch.cat((logits[:, :1], logits[:, :-1]), 1)
            logits[..., MASK] = -torch.inf
            nll = F.cross_entropy(logits.flatten(0, 1), x0.flatten(), reduction="none").view(4, L)
            total = ((nll * hidden).sum(1) / hidden.sum(1)).mean() / accum
            total.backward()
            losses[-1] += total.item()
            best = logits.detach().softmax(-1).amax(-1).masked_fill(~hidden, 0)
            stream.advance(best, best)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return losses


WAYS = [(name, 1, 0, 0) for name in FAMILIES]  # of each: passes, buffer, rank
WAYS += [("qwen2", 2, 0, 0), ("bert", 1, 2, 0), ("qwen2", 2, 1, 0), ("llama", 1, 2, 1)]


@pytest.mark.parametrize("way", WAYS)
def test_updates_are_a_loop_by_hand(way, tmp_path):
    family, accum, buffer, rank = way
    net = make(family)
    expected = by_hand(copy.deepcopy(net), 5, *way[1:])
    place = {"process_index": PropertyMock(return_value=rank)}
    place |= {"world_size": PropertyMock(return_value=rank + 1)}
    with patch.multiple(transformers.TrainingArguments, **place):
        found = trained(net, tmp_path, 5, accum, "puma_plus" if buffer else "puma", buffer=buffer)
    assert found == pytest.approx(expected, rel=5e-4)


def test_what_a_trainer_is_given(tmp_path):
    """Epochs in place of steps; what cannot be trained on, or is not used, is one sentence."""
    given = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=2, per_device_train_batch_size=8, use_cpu=True,
        disable_tqdm=True, save_strategy="no", gradient_accumulation_steps=2,
    )  # fmt: skip
    run = hf.PumaTrainer(make("bert"), given, ROWS, MASK)
    run.train()
    assert run.state.global_step == 8  # 60 rows are four batches of 16
    for measure in run.evaluate, run.predict:
        with pytest.raises(NotImplementedError, match="only trains"):
            measure(ROWS)
    for token, message in (MASK, "the mask token 89"), (V, "tokens up to 90"):
        with pytest.raises(ValueError, match=message):
            hf.PumaTrainer(run.model, given, TensorDataset(0 * GIVEN + token, GIVEN), MASK)
    for wrong in {"method": "pmua"}, {"policy": "pmua"}, {"K": 0}, {"tau": 7}, {"eval_dataset": 1}:
        with pytest.raises(ValueError, match=f"{min(wrong)}"):
            hf.PumaTrainer(run.model, given, ROWS, MASK, **wrong)


NAMES = {  # of the weights in LLaDA's checkpoints
    "model.embed_tokens": "model.transformer.wte", "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out", "model.layers": "model.transformer.blocks",
    "self_attn.o_proj": "attn_out", "self_attn.": "", "mlp.gate_proj": "ff_proj",
    "mlp.down_proj": "ff_out", "mlp.": "", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}  # fmt: skip
LLADA = dict(model_type="llada", architectures=["LLaDAModelLM"], d_model=16, n_heads=2, n_layers=2,
             n_kv_heads=1, mlp_hidden_size=32, max_sequence_length=32, vocab_size=80, alibi=False,
             embedding_size=V, rope_theta=50.0, rms_norm_eps=0.1, mask_token_id=MASK,
             weight_tying=False, auto_map={"AutoConfig": "evil.LLaDAConfig"})  # fmt: skip


def test_llada_is_read_and_kept_as_a_llama_that_sees_both_sides(tmp_path):
    known = make("llama").eval()
    weights = known.state_dict()
    for name in [*weights]:
        theirs = name
        for part in NAMES:
            theirs = theirs.replace(part, NAMES[part])
        weights[theirs] = weights.pop(name).clone()
    (tmp_path / "config.json").write_text(json.dumps(LLADA))
    save_file(weights, tmp_path / "model.safetensors")
    net, shift = hf.load(str(tmp_path))
    x = torch.randint(MASK, (1, L))
    assert not shift and torch.equal(net(input_ids=x).logits, known(input_ids=x).logits)
    trained(net, tmp_path / "out", shift=shift)
    again, shift = hf.load(str(tmp_path / "out/checkpoint-3"))
    assert not shift and same(again.state_dict(), net.state_dict())
    assert again.config.mask_token_id == MASK and not hasattr(again.config, "auto_map")
    filled, _ = sample.generate(hf.Scored(again.eval(), MASK, shift), x, x > 40, policies.top_k, 1)
    assert ((filled == x) | (x > 40)).all() and (filled != MASK).all()


def test_lora_trains_the_adapters_alone_in_half_precision(tmp_path):
    peft = pytest.importorskip("peft")
    wanted = peft.LoraConfig(r=4, target_modules="all-linear")
    net = peft.get_peft_model(make("bert").to(torch.bfloat16), wanted)
    before = copy.deepcopy(net.state_dict())
    casts = []
    look = lambda *parts: casts.append(torch.is_autocast_enabled("cpu")) or objective(*parts)  # noqa: E731
    with patch.object(trainer, "objective", look):
        trained(net, tmp_path, steps=2, bf16=True)
    assert casts == [True, True]  # the head's products, too
    moved = {name for name, p in net.state_dict().items() if not torch.equal(p, before[name])}
    assert moved and all("lora_" in name for name in moved)


def test_models_that_this_would_get_wrong_are_refused(tmp_path, monkeypatch):
    past = transformers.Qwen2Config(**GROUPS | {"is_causal": True})
    soft = transformers.Gemma2Config(**GROUPS, head_dim=8, final_logit_softcapping=0.1)
    for config, message in (past, "do not see what follows"), (soft, "not its head times its"):
        with pytest.raises(ValueError, match=message):
            hf.check(transformers.AutoModelForCausalLM.from_config(config), MASK)
    make("bert").bert.save_pretrained(tmp_path)
    for read, message in (hf.load, "lacks cls.predictions"), (hf.coder_of, "has no tokenizer"):
        with pytest.raises(ValueError, match=message):  # neither is made up
            read(str(tmp_path))
    monkeypatch.setattr("builtins.input", lambda _: "y")  # nor is the user asked, who might say yes
    form = '{"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}'
    (tmp_path / "config.json").write_text(form)
    (tmp_path / "evil.py").write_text(f"open('{tmp_path}/ran', 'w')")
    with pytest.raises(ValueError, match="trust_remote_code"):
        hf.load(str(tmp_path))
    assert not (tmp_path / "ran").exists()


# -- the command -----------------------------------------------------------------------------------
LETTERS = "abcdefghijklmnopqrstuvwxyz"
IDS = {word: i for i, word in enumerate(["<end>", "<mask>", "\n", *LETTERS])}
TEMPLATE = """{% for m in messages %}{% if m.role == "system" %}{{ raise_exception("no") }}{% endif
%}{{ m.role[0] + m.content + "\n" }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"""


def write_model(folder, family):
    """Random weights, and a tokenizer whose ids are letters."""
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(IDS, unk_token="<end>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    plain.decoder = tokenizers.decoders.Fuse()
    special = {"eos_token": "<end>"} | ({"mask_token": "<mask>"} if family == "bert" else {})
    special |= {"tokenizer_object": plain, "chat_template": TEMPLATE}
    transformers.PreTrainedTokenizerFast(**special).save_pretrained(folder)
    net = make(family)
    net.resize_token_embeddings(len(IDS))
    net.save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models, and rows of two letters, which are to be copied in the other order."""
    folder = tmp_path_factory.mktemp("hf")
    for family in "bert", "roberta", "qwen2":
        write_model(folder / family, family)
    pairs = itertools.product(LETTERS, LETTERS)
    write_lines(folder / "rows.jsonl", [{"question": a + b, "answer": b + a} for a, b in pairs])
    return folder


def call(folder, *flags, script="hf"):
    where = [f"--model={folder}/bert", f"--data={folder}/rows.jsonl", f"--out_dir={folder}/out"]
    argv = [script, *where, "--K=2", "--length=7", "--batch_size=16", "--bf16=False", *flags]
    with patch.object(sys, "argv", argv):
        runpy.run_path(f"{ROOT}/lab/{script}.py", run_name="__main__")


WRONG = [
    ("--model=", "expected --model=FOLDER and --data=FILE"),
    ("--model=/none --data={}/none.jsonl", r"cannot read .*none\.jsonl"),
    ("--model={}/none", "none: no folder of a model"),
    ("--model={}/roberta --length=31", "rows of 31 tokens: .* has positions for 30"),
    ("--report_to=pigeons", "pigeons"),
    ("--grad_accum=3", "batch_size=16 does not split into 1 processes, grad_accum=3"),
    ("--held_out=676", "676 rows held out, 0 with other prompts to train on: give more"),
    ("--out_dir={}/rows.jsonl/out", "Not a directory"),
    ("--prompt=a", r"bert has no puma\.json: lab/hf\.py has not written it"),
    ("peft --lora=2", "No module named|None in sys"),
    ("transformers", "no package transformers: pip install transformers"),
    ("lm_eval", r"no package lm_eval\S*: pip install lm_eval"),
]


@pytest.mark.parametrize(("flags", "message"), WRONG)
def test_what_cannot_be_is_one_line(flags, message, folder, monkeypatch):
    for name in re.findall(r"^\w+", flags):
        for part in [each for each in sys.modules if each.startswith(f"{name}.")]:
            monkeypatch.delitem(sys.modules, part)
        monkeypatch.setitem(sys.modules, name, None)  # a package that is missing
    with pytest.raises(SystemExit, match=message) as error:
        flags = [flag for flag in flags.format(folder).split() if flag[0] == "-"]
        call(folder, *flags, script="harness" if "lm_eval" in message else "hf")
    assert "\n" not in str(error.value)


def test_the_same_command_goes_on_from_the_newest_whole_checkpoint(folder, tmp_path, capsys):
    """One is whole before the one before it is deleted; at the end nothing is left to do."""
    whole, part, found = tmp_path / "whole", tmp_path / "part", []
    flags = "--max_iters=7", "--save_interval=2", "--keep", "--samplers=[(7,1.0)]"
    with patch("transformers.trainer.rotate_checkpoints") as rotate:
        rotate.side_effect = lambda **_: found.append(trainer.newest(whole)[-1])
        call(folder, *flags, f"--out_dir={whole}")
    assert "".join(found) == "2467"
    shutil.copytree(whole, part)
    (part / "checkpoint-old").mkdir()
    (part / "checkpoint-7/trainer_state.json").unlink()
    (part / "model.safetensors").unlink()
    for file in [*(part / "checkpoint-6").iterdir()]:
        content = file.read_bytes()
        for change in ("unlink",), ("write_bytes", content[: len(content) // 2]):
            getattr(file, change[0])(*change[1:])
            assert trainer.newest(part) == str(part / "checkpoint-4"), file
        file.write_bytes(content)
    (part / "checkpoint-6/chains_0_of_1.pt").unlink()
    capsys.readouterr()
    for _ in range(2):
        call(folder, *flags, f"--out_dir={part}")
        for name in "model.safetensors", "checkpoint-7/chains_0_of_1.pt":
            assert (part / name).read_bytes() == (whole / name).read_bytes()
    assert capsys.readouterr().out.count("checkpoint-6 is not whole: it is passed over\n") == 1
    assert not (part / "checkpoint-8").exists()
    with pytest.raises(SystemExit, match="was made with another K: choose another"):
        call(folder, *flags, f"--out_dir={part}", "--K=3")


@pytest.mark.parametrize("chat", [False, True])
def test_rows(chat, folder, tmp_path, capsys):
    """Each is used or dropped, and none that is trained on has a prompt that is held out."""
    pairs = [("ab", "cd"), ("ab", "dc"), ("ab ", "d"), ("ef", "g"), ("ef\n", "g"), ("hi", "j")]
    pairs += [("m", None), ("n", " "), ("o", "p<mask>"), ("p", "q" * 9), (None, "r")]
    rows = [{"question": a, "answer": b} for a, b in pairs]
    for row in rows:
        row["messages"] = [{"role": "user", "content": row["question"]}]
        row["messages"].append({"role": "assistant", "content": row["answer"]})
    ask, reply = rows[0]["messages"]
    odd = [{"role": "system", "content": "s"}, ask, reply], [{"role": "user", "t": "t"}, reply]
    rows += [{"messages": talk} for talk in (*odd, [ask, reply, ask])]
    write_lines(tmp_path / "rows.jsonl", rows)
    write_lines(tmp_path / "test.jsonl", rows[3:6])
    data, test = (f"{tmp_path}/{name}.jsonl" for name in ("rows", "test"))
    settings = dict(model=f"{folder}/bert", chat=chat, length=9, batch_size=2, K=2, held_out=2)
    decode = hf.coder_of(settings["model"]).decode

    def start(**more):
        with patch.multiple(hf, **settings, out_dir=f"{tmp_path}/out", **more):
            run, held, _ = hf.start()
        words = [[decode(x[given])[chat:][:2] for x, given in part] for part in (run.rows, held)]
        return *words, run.rows

    trained, held, _ = start(data=data)
    assert not {*trained} & {*held} and {*trained, *held} == {"ab", "ef", "hi"}
    dropped = "6 of 14 rows can be used, dropped: 6 unusable, 1 has_mask, 1 too_long\n"
    assert dropped in capsys.readouterr().out
    trained, held, _ = start(data=data, test=test)
    assert {*held} == {"ef", "hi"} and trained == ["ab"] * 3
    trained, held, rows = start(test=test, max_iters=0)
    assert trained == held and len(held) == 3
    x0, given = rows[-1]
    expected = ("uhi\naj\n..", 5) if chat else ("hi\nj.....", 3)
    assert (decode(x0).replace("<end>", "."), given.sum()) == expected


def test_a_prompt_is_filled_in_or_answered(folder, tmp_path, capsys):
    """By a sampler that gives the third text for the second, of rows as long as in training."""
    call(folder, "--max_iters=1", f"--out_dir={tmp_path}")
    as_ids = lambda row: torch.tensor([[IDS.get(c, "._".find(c)) for c in row]])  # noqa: E731
    cases = ("ab", "ab\n____", "ab\nba.c", "ba"), ("{2}c{1}", "__c_...", "x.cz...", "x<end>cz")
    for prompt, row, filled, shown in cases:
        sampler = Mock(return_value=(as_ids(filled), None))
        capsys.readouterr()
        with patch.object(sample, "generate", sampler), pytest.raises(SystemExit):
            call(folder, f"--model={tmp_path}", f"--prompt={prompt}", "--length=99")
        _, x, hidden, *how = sampler.call_args.args
        assert how == [policies.top_k, 1, 0.99] and torch.equal(hidden, as_ids(row) == 1)
        assert torch.equal(x, as_ids(row)) and capsys.readouterr().out == f"{shown}\n"
    with pytest.raises(SystemExit, match="7 tokens do not fit into the 6 of a row"):
        call(folder, f"--model={tmp_path}", "--prompt=abc{4}", "--length=6")


def command(out, *flags, world=1):
    """What lab/hf.py prints, of as many processes."""
    torchrun = f"-m torch.distributed.run --standalone --nproc_per_node={world}".split()
    call = [sys.executable, *torchrun * (world > 1), "lab/hf.py", f"--out_dir={out}", *flags]
    return subprocess.check_output(call, cwd=ROOT, env=ENV, text=True)


@pytest.mark.slow
def test_copying_two_letters_is_learned_by_two_processes(folder, tmp_path):
    flags = ["--length=7", "--held_out=50", "--lr=0.003", "--batch_size=16", "--K=2"]
    flags += ["--max_iters=1000", f"--data={folder}/rows.jsonl", f"--model={folder}/qwen2"]
    shares = [re.findall(r"(\S+) % right", command(tmp_path, *flags, world=2)) for _ in range(2)]
    assert float(shares[0][0]) > 40 and shares[0] == shares[1]  # it was over
