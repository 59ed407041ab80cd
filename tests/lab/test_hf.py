"""lab/hf.py on tiny random models of five families, against loops written by hand."""

import copy
import itertools
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock, PropertyMock, patch

import pytest
import torch
import torch.nn.functional as F
from conftest import ENV, ROOT, same
from safetensors.torch import save_file
from torch.utils.data import TensorDataset

pytest.importorskip("accelerate")
import tokenizers
import transformers

import loss
import policies
import puma
import sample
from lab import hf, trainer

V, L, MASK = 90, 12, 89
SIZE = dict(vocab_size=V, hidden_size=16, intermediate_size=32, num_hidden_layers=2)
SIZE |= dict(num_attention_heads=2, max_position_embeddings=32, pad_token_id=0, is_causal=False)
GROUPS = SIZE | dict(num_key_value_heads=1)
FAMILIES = {  # of the first three row i scores token i
    "bert": transformers.BertConfig(**SIZE, hidden_dropout_prob=0.1),
    "roberta": transformers.RobertaConfig(**SIZE | {"pad_token_id": 1}),
    "modernbert": transformers.ModernBertConfig(**SIZE, attn_implementation="eager"),
    "qwen2": transformers.Qwen2Config(**GROUPS),
    "llama": transformers.LlamaConfig(**GROUPS, rope_theta=50.0, rms_norm_eps=0.1),
}
torch.manual_seed(0)
ROWS = TensorDataset(
    torch.randint(1, MASK, (60, L)), torch.arange(L) < torch.randint(1, 5, (60, 1))
)


def make(family):
    """A random model that is surer of some tokens than of others."""
    torch.manual_seed(1)
    kinds = transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM
    net = kinds[family in ("qwen2", "llama")].from_config(FAMILIES[family])
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
    how = {"shift": net.config.model_type in ("qwen2", "llama"), "K": 3, "tau": 0.3} | how
    return hf.PumaTrainer(net, args, ROWS, MASK, method=method, **how)


def by_hand(net, steps, accum, buffer=0, world=1):
    """Losses from full logits and a model in training mode; processes one by one.

    buffer: of PUMA+, which visits random masks and the batches of chains by turns; 0: of PUMA.
    """
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.0)
    streams = []
    count = max(1, buffer) * accum
    for rank in range(world):
        puma.draw_from(5, rank, 0)
        how = puma.Queue(ROWS, 4, "cpu", 5, rank, world), MASK
        firsts = range(rank * count * 4, (rank + 1) * count * 4, 4)
        chains = [puma.ProgressiveUnmasking(*how, [(0, 3)], 0.3, first) for first in firsts]
        both = [each for chain in chains for each in (puma.RandomMasking(*how), chain)]
        streams.append(both if buffer else chains)
    net.train()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(0)
        for rank, part in itertools.product(range(world), range(accum)):
            number = step * accum + part
            puma.draw_from(5, rank, 1 + number)
            stream = streams[rank][number % len(streams[rank])]
            x, x0, hidden = stream.batch(step)
            logits = net(input_ids=x).logits.clone()
            if net.config.model_type in ("qwen2", "llama"):
                logits = torch.cat((logits[:, :1], logits[:, :-1]), 1)
            logits[..., MASK] = -torch.inf
            nll = F.cross_entropy(logits.flatten(0, 1), x0.flatten(), reduction="none").view(4, L)
            total = ((nll * hidden).sum(1) / hidden.sum(1)).mean() / (accum * world)
            total.backward()
            losses[-1] += total.item()
            best = logits.detach().softmax(-1).amax(-1).masked_fill(~hidden, 0)
            stream.advance(best, best)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return losses


def losses(run):
    return [line["loss"] for line in run.state.log_history if "loss" in line]


WAYS = [*((name, 1, 0) for name in FAMILIES), ("qwen2", 2, 0), ("bert", 1, 2), ("qwen2", 2, 1)]


@pytest.mark.parametrize(("family", "accum", "buffer"), WAYS)
def test_updates_are_a_loop_by_hand(family, accum, buffer, tmp_path):
    net = make(family)
    expected = by_hand(copy.deepcopy(net), 5, accum, buffer)
    method = "puma_plus" if buffer else "puma"
    run = trained(net, tmp_path, 5, accum, method, buffer=buffer)
    run.train()
    assert losses(run) == pytest.approx(expected, rel=5e-4)


def test_what_a_trainer_is_given(tmp_path):
    """Epochs in place of steps; what cannot be trained on, or is not used, is one sentence."""
    given = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=2, per_device_train_batch_size=8, use_cpu=True,
        disable_tqdm=True, save_strategy="no", gradient_accumulation_steps=2,
    )  # fmt: skip
    run = hf.PumaTrainer(make("bert"), given, ROWS, MASK)
    with patch.object(puma, "make_streams", Mock(wraps=puma.make_streams)) as spy:
        run.train()
        assert run.state.global_step == 8  # 60 rows are four batches of 16
        with patch.object(type(given), "world_size", PropertyMock(return_value=3)):
            run.get_train_dataloader()
    found = [[call.kwargs[name] for name in ("method", "batch_size")] for call in spy.mock_calls]
    assert found == [["puma_plus", 16], ["puma_plus", 48]]  # rows of an update, of all processes
    for measure in run.evaluate, run.predict:
        with pytest.raises(NotImplementedError, match="only trains"):
            measure(ROWS)
    x0, prompt = (part.clone() for part in ROWS.tensors)
    for token, message in (MASK, "the mask token 89"), (V, "tokens up to 90"):
        x0[:, -1] = token
        with pytest.raises(ValueError, match=message):
            hf.PumaTrainer(run.model, given, TensorDataset(x0, prompt), MASK)
    for wrong in {"method": "pmua"}, {"policy": "pmua"}, {"K": 0}, {"tau": 7}, {"eval_dataset": 1}:
        with pytest.raises(ValueError, match=f"{min(wrong)}"):
            hf.PumaTrainer(run.model, given, ROWS, MASK, **wrong)


@pytest.mark.parametrize("family", ["modernbert", "qwen2"])
def test_a_resumed_run_ends_as_one_that_never_stopped(family, tmp_path):
    """From the newest whole checkpoint: it is whole before the one before is deleted."""
    whole, part = (tmp_path / name for name in ("whole", "part"))
    seen, said = [], []
    run = trained(make(family), whole, 7, method="puma_plus", buffer=2)
    look = lambda **_: seen.append(trainer.newest(whole))  # noqa: E731
    with patch("transformers.trainer.rotate_checkpoints", look):
        run.train()
    assert seen == [str(whole / f"checkpoint-{update}") for update in (3, 6, 7)]
    trained(make(family), part, 3, method="puma_plus", buffer=2).train()
    (part / "checkpoint-old").mkdir()
    rest = trained(make(family), part, 7, method="puma_plus", buffer=2)
    rest.train(resume_from_checkpoint=trainer.newest(part))
    assert losses(run)[3:] == losses(rest)[-4:]
    assert same(run.model.state_dict(), rest.model.state_dict())
    assert same(*(torch.load(x / "checkpoint-7/chains_0_of_1.pt") for x in (whole, part)))
    for file in [*(part / "checkpoint-7").iterdir()]:
        content = file.read_bytes()
        for change in ("unlink",), ("write_bytes", content[: len(content) // 2]):
            getattr(file, change[0])(*change[1:])
            assert trainer.newest(part, said.append) == str(part / "checkpoint-6"), file
        file.write_bytes(content)
    assert {*said} == {f"{part}/checkpoint-7 is not whole: it is passed over"}
    assert trainer.newest(part) == str(part / "checkpoint-7") and trainer.newest("none") is None


@pytest.mark.slow
def test_two_processes(tmp_path):
    (tmp_path / "run.py").write_text(RUN.format(folder=Path(__file__).parent))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "run.py"]
    subprocess.run([sys.executable, *torchrun], cwd=tmp_path, env=ENV, check=True)
    found = json.loads((tmp_path / "losses.json").read_text())
    assert found == pytest.approx(by_hand(make("qwen2"), 3, 2, buffer=1, world=2), rel=1e-3)
    kept = json.loads((tmp_path / "out/checkpoint-3/sizes.json").read_text())
    assert {"chains_0_of_2.pt", "chains_1_of_2.pt"} < kept.keys()


RUN = """
import json, sys
sys.path[:0] = ["{folder}", "{folder}/..", "{folder}/../.."]
import test_hf as t
run = t.trained(t.make("qwen2"), "out", accum=2, method="puma_plus", buffer=1)
run.train()
if run.args.process_index == 0:
    t.Path("losses.json").write_text(json.dumps(t.losses(run)))
t.torch.distributed.destroy_process_group()  # else its threads may abort the end of the process
"""


# -- models ----------------------------------------------------------------------------------------
@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_logits_are_those_of_the_library(family):
    net = make(family).eval()
    hf.check(net, MASK)
    shift = family in ("qwen2", "llama")
    scored = hf.Scored(net, MASK, shift)
    x = torch.randint(MASK, (2, L))
    expected = net(input_ids=x).logits
    logits = scored.logits(scored(x))
    assert (logits[..., MASK] == -torch.inf).all()
    a, b = (logits[:, 1:], expected[:, :-1]) if shift else (logits, expected)
    torch.testing.assert_close(a[..., :MASK], b[..., :MASK], rtol=1e-4, atol=1e-5)


NAMES = {  # of the weights in LLaDA's checkpoints
    "model.embed_tokens": "model.transformer.wte", "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out", "model.layers": "model.transformer.blocks",
    "self_attn.o_proj": "attn_out", "self_attn.": "", "mlp.gate_proj": "ff_proj",
    "mlp.down_proj": "ff_out", "mlp.": "", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}  # fmt: skip
LLADA = dict(model_type="llada", architectures=["LLaDAModelLM"], d_model=16, n_heads=2, n_layers=2)
LLADA |= dict(n_kv_heads=1, mlp_hidden_size=32, max_sequence_length=32, vocab_size=80, alibi=False)
LLADA |= dict(embedding_size=V, rope_theta=50.0, rms_norm_eps=0.1, mask_token_id=MASK)
LLADA |= dict(weight_tying=False, auto_map={"AutoConfig": "evil.LLaDAConfig"})


@torch.no_grad()
def test_llada_is_read_and_kept_as_a_llama_that_sees_both_sides(tmp_path):
    known = make("llama").eval()
    w = {}
    for name, weight in known.state_dict().items():
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        w[name] = weight.clone()
    (tmp_path / "config.json").write_text(json.dumps(LLADA))
    save_file(w, tmp_path / "model.safetensors")
    net, shift = hf.load(str(tmp_path))
    x = torch.randint(MASK, (1, L))
    assert not shift and torch.equal(net(input_ids=x).logits, known(input_ids=x).logits)
    with torch.enable_grad():
        trained(net, tmp_path / "out", shift=shift).train()
    for kept in tmp_path, tmp_path / "out/checkpoint-3":
        again, shift = hf.load(str(kept))
    assert not shift and same(again.state_dict(), net.state_dict())
    assert again.config.mask_token_id == MASK and not hasattr(again.config, "auto_map")
    scored = hf.Scored(again.eval(), MASK, shift)
    filled, _ = sample.generate(scored, x, x > 40, policies.top_k, 1)
    assert (filled != MASK).all() and torch.equal(filled[x <= 40], x[x <= 40])


@pytest.mark.parametrize(("family", "bf16"), [("bert", False), ("bert", True), ("qwen2", True)])
def test_lora_trains_the_adapters_alone(family, bf16, tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    net = make(family).to(torch.bfloat16 if bf16 else torch.float32)
    net = peft.get_peft_model(net, peft.LoraConfig(r=4, target_modules="all-linear"))
    before = copy.deepcopy(net.state_dict())
    plain, casts = loss.objective, []

    def watched(*parts):
        casts.append(torch.is_autocast_enabled("cpu"))
        return plain(*parts)

    monkeypatch.setattr("lab.trainer.objective", watched)
    trained(net, tmp_path, steps=2, bf16=bf16).train()
    assert casts == [bf16] * 2  # the head's products, too
    moved = {name for name, p in net.state_dict().items() if not torch.equal(p, before[name])}
    assert moved and all("lora_" in name for name in moved)


def test_models_that_this_would_get_wrong_are_refused(tmp_path, monkeypatch):
    past = transformers.Qwen2Config(**GROUPS | {"is_causal": True})
    soft = transformers.Gemma2Config(**GROUPS, head_dim=8, final_logit_softcapping=0.1)
    for config, message in (
        (past, "do not see what follows"),
        (soft, "not its head times its states"),
    ):
        with pytest.raises(ValueError, match=message):
            hf.check(transformers.AutoModelForCausalLM.from_config(config), MASK)
    make("bert").bert.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks cls\.predictions"):  # no head is made up
        hf.load(str(tmp_path))
    with pytest.raises(ValueError, match="has no tokenizer"):
        hf.coder_of(str(tmp_path))
    monkeypatch.setattr("builtins.input", lambda _: "y")  # nor is the user asked, who might say yes
    form = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(form))
    (tmp_path / "evil.py").write_text(f"open('{tmp_path}/ran', 'w')")
    with pytest.raises(ValueError, match="trust_remote_code"):
        hf.load(str(tmp_path))
    assert not (tmp_path / "ran").exists()


# -- the command ---------------------------------------------------------------------------------
LETTERS = [chr(97 + i) for i in range(26)]
TEMPLATE = """{% for m in messages %}{% if m.role == "system" %}{{ raise_exception("no") }}{% endif
%}{{ m.role[0] + m.content + "\n" }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"""


def write_model(folder, family):
    """Random weights, and a tokenizer whose ids are letters."""
    words = {word: i for i, word in enumerate(["<end>", "<mask>", "\n", *LETTERS])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<end>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    plain.decoder = tokenizers.decoders.Fuse()
    special = {"eos_token": "<end>"} | ({"mask_token": "<mask>"} if family == "bert" else {})
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, chat_template=TEMPLATE, **special
    )
    tokenizer.save_pretrained(folder)
    net = make(family)
    net.resize_token_embeddings(len(words))
    net.save_pretrained(folder)


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models, and rows of two letters, which are to be copied in the other order."""
    folder = tmp_path_factory.mktemp("hf")
    for family in "bert", "roberta", "qwen2":
        write_model(folder / family, family)
    pairs = [(a + b, b + a) for a, b in itertools.product(LETTERS, LETTERS)]
    write_rows(folder / "rows.jsonl", [{"question": a, "answer": b} for a, b in pairs])
    (folder / "made").mkdir()
    (folder / "made/settings.json").write_text('{"K": 9}')
    return folder


def call(folder, *flags):
    """lab/hf.py in this process."""
    where = [f"--model={folder}/bert", f"--data={folder}/rows.jsonl", f"--out_dir={folder}/out"]
    argv = ["lab/hf.py", *where, "--K=2", "--length=7", "--batch_size=16", *flags]
    with patch.object(sys, "argv", argv):
        runpy.run_path(f"{ROOT}/lab/hf.py", run_name="__main__")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--model=", "expected --model=FOLDER and --data=FILE"),
        ("--model=/none --data={}/none.jsonl", r"cannot read .*none\.jsonl"),
        ("--model={}/none", "none: no folder of a model"),
        ("--length=33", "rows of 33 tokens: .* has positions for 32"),
        ("--model={}/roberta --length=31", "has positions for 30"),
        ("--grad_accum=3", "batch_size=16 does not split into 1 processes, grad_accum=3"),
        ("--K=8", "expected 1 to 7 tokens"),
        ("--held_out=676", "676 rows held out, 0 with other prompts to train on: give more"),
        ("--test={}/rows.jsonl", "676 rows held out, 0 with other prompts"),
        ("--out_dir={}/rows.jsonl/out", "Not a directory|File exists"),
        ("--out_dir={}/made", "was made with another K: choose another"),
        ("--report_to=pigeons", "pigeons"),
        ("--prompt=a", r"bert has no puma\.json: lab/hf\.py has not written it"),
    ],
)
def test_what_cannot_be_is_one_line(flags, message, folder):
    with pytest.raises(SystemExit, match=message) as error:
        call(folder, *flags.format(folder).split())
    assert "\n" not in str(error.value)


def test_without_a_package(folder, monkeypatch):
    for name, message in ("peft", "No module named|None in sys"), ("transformers", "pip install"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(SystemExit, match=message):
            call(folder, "--lora=2")


@pytest.mark.parametrize("chat", [False, True])
def test_rows(chat, folder, tmp_path, capsys):
    """Each is used or dropped, and none that is trained on has a prompt that is held out."""
    pairs = [("ab", "cd"), ("ab", "dc"), ("ab ", "d"), ("ef", "g"), ("ef\n", "g"), ("hi", "j")]
    pairs += [("m", None), ("n", " "), ("o", "p<mask>"), ("p", "q" * 9), (None, "r")]
    rows = [{"question": a, "answer": b} for a, b in pairs]
    if chat:
        talks = [[("user", "content", a), ("assistant", "content", b)] for a, b in pairs]
        talks += [[("system", "content", "s"), *talks[0]], [("user", "text", "t"), talks[0][1]]]
        talks += [[*talks[0], ("user", "content", "u")]]
        rows = [{"messages": [{"role": a, b: c} for a, b, c in talk]} for talk in talks]
    write_rows(tmp_path / "rows.jsonl", rows)
    write_rows(tmp_path / "test.jsonl", rows[3:6])
    settings = dict(model=f"{folder}/bert", chat=chat, length=9, batch_size=2, K=2, held_out=2)

    def start(**more):
        with patch.multiple(hf, **settings, out_dir=f"{tmp_path}/out", **more):
            run, held, _ = hf.start()
        both = [hf.coder_of(settings["model"]).decode(x[given]) for x, given in [*run.rows, *held]]
        own = ["".join(c for c in text[chat:] if c in "abefhi")[:2] for text in both]
        return own[: -len(held)], own[-len(held) :], run.rows

    trained, held, _ = start(data=f"{tmp_path}/rows.jsonl")
    assert not {*trained} & {*held} and {*trained, *held} == {"ab", "ef", "hi"}
    dropped = f"6 of {len(rows)} rows can be used, dropped: {3 + 3 * chat} unusable, 1 has_mask"
    assert f"{dropped}, 1 too_long\n" in capsys.readouterr().out
    for data, most in (f"{tmp_path}/rows.jsonl", 9), ("", 0):
        trained, held, rows = start(data=data, test=f"{tmp_path}/test.jsonl", max_iters=most)
        assert {*held} == {"ef", "hi"} and trained == (["ab"] * 3 if data else held)
    x0, given = rows[-1]
    x0 = hf.coder_of(settings["model"]).decode(x0).replace("<end>", ".")
    assert (x0, given.sum()) == (("uhi\naj\n..", 5) if chat else ("hi\nj.....", 3))


def test_a_prompt_is_filled_in_or_answered(folder, tmp_path, capsys):
    call(folder, "--max_iters=2", f"--out_dir={tmp_path}/out", "--lr=0.01", "--bf16=False")
    net, shift = hf.load(f"{tmp_path}/out")
    scored = hf.Scored(net.eval(), 1, shift)
    ids = {letter: 3 + i for i, letter in enumerate(LETTERS)} | {"\n": 2, "_": 1, ".": 0}
    for prompt, row, shown in ("ab", "ab\n____", slice(3, 7)), ("{2}c{1}", "__c_...", slice(4)):
        x = torch.tensor([[ids[c] for c in row]])
        filled, _ = sample.generate(scored, x, x == 1, policies.top_k, 1, 0.99)
        expected = hf.coder_of(f"{tmp_path}/out").decode(filled[0, shown])
        capsys.readouterr()
        with pytest.raises(SystemExit):
            call(folder, f"--model={tmp_path}/out", f"--prompt={prompt}")
        answer = capsys.readouterr().out
        assert answer == (expected.partition("<end>")[0] if prompt == "ab" else expected) + "\n"
    with pytest.raises(SystemExit, match="8 tokens do not fit into the 7 of a row"):
        call(folder, f"--model={tmp_path}/out", "--prompt=abc{5}")


def command(out, *flags, world=1):
    """What lab/hf.py prints, of as many processes."""
    torchrun = f"-m torch.distributed.run --standalone --nproc_per_node={world}".split()
    call = [sys.executable, *torchrun * (world > 1), "lab/hf.py", f"--out_dir={out}", *flags]
    done = subprocess.run(call, cwd=ROOT, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_command(folder, tmp_path):
    """From a folder and a file to shares, and on from there; copying two letters is learned."""
    flags = f"--data={folder}/rows.jsonl --length=7 --held_out=50 --lr=0.003 --batch_size=16 --K=2"
    first = f"--model={folder}/qwen2", "--max_iters=1000", "--method=mdm"
    printed = command(tmp_path / "mdm", *first, *flags.split(), world=2)
    next_one = f"--model={tmp_path}/mdm", "--max_iters=20"
    for _ in range(2):  # again: it is over, so it is measured once more
        printed += command(tmp_path / "plus", *next_one, *flags.split(), world=2)
    shares = [float(share) for share in re.findall(r"(\S+) % right", printed)]
    count = len(hf.samplers)
    assert shares[0] > 40 and shares[count] > 5 and shares[count:][:count] == shares[-count:]
    kept = json.loads((tmp_path / "plus/eval.json").read_text())
    assert [round(100 * record["solved"], 1) for record in kept.values()] == shares[-count:]
    whole = command(tmp_path / "m", f"--model={tmp_path}/plus", "--max_iters=0", *flags.split())
    assert re.findall(r"(\S+) % right", whole) == re.findall(r"(\S+) % right", printed)[-count:]
