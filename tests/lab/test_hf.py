"""lab/hf.py on tiny random models of five families, against a loop written by hand."""

import copy
import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import ENV, ROOT, same
from torch.utils.data import TensorDataset

pytest.importorskip("accelerate")
import datasets
import tokenizers
import transformers

import loss
import policies
import puma
import sample
from lab import hf

V, L, MASK = 90, 12, 89
SIZE = dict(vocab_size=V, hidden_size=16, intermediate_size=32, num_hidden_layers=2)
SIZE |= dict(num_attention_heads=2, max_position_embeddings=32, pad_token_id=0)
GROUPS = dict(num_key_value_heads=2, is_causal=False)
FAMILIES = {
    "bert": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(**SIZE, hidden_dropout_prob=0.1)
    ),
    "modernbert": lambda: transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(**SIZE, attn_implementation="eager")
    ),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZE, **GROUPS)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**SIZE, **GROUPS, head_dim=8)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE, **GROUPS)),
}
torch.manual_seed(0)
ROWS = TensorDataset(
    torch.randint(1, MASK, (60, L)), torch.arange(L) < torch.randint(1, 5, (60, 1))
)


def make(family):
    """A random model that is surer of some tokens than of others."""
    torch.manual_seed(1)
    net = FAMILIES[family]()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(4 if p.dim() > 1 else 1)
    return net


def trainer(net, folder, steps=3, accum=1, method="puma", bf16=False, args=None, **how):
    args = transformers.TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2,
        gradient_accumulation_steps=accum, logging_steps=1, use_cpu=True,
        report_to="none", disable_tqdm=True, seed=5, lr_scheduler_type="constant", bf16=bf16,
        per_device_eval_batch_size=1, **{"save_steps": 3} | (args or {}),
    )  # fmt: skip
    shift = net.config.model_type in ("qwen2", "qwen3", "llama")
    return hf.PumaTrainer(net, args, ROWS, MASK, shift, method, K=3, tau=0.3, **how)


def by_hand(net, steps, accum, world=1):
    """Losses of PUMA, from full logits and a model in training mode; processes one by one."""
    shift = net.config.model_type in ("qwen2", "qwen3", "llama")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.0)
    streams = []
    for rank in range(world):
        puma.draw_from(5, rank, 0)
        queue = puma.Queue(ROWS, 4, "cpu", 5, rank, world)
        streams.append(puma.ProgressiveUnmasking(queue, MASK, [(0, 3)], 0.3, accum, False))
    net.train()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        total = 0
        for rank, part in itertools.product(range(world), range(accum)):
            puma.draw_from(5, rank, 1 + step * accum + part)
            x, x0, hidden = streams[rank].batch(step)
            logits = net(input_ids=x).logits.clone()
            logits = torch.cat((logits[:, :1], logits[:, :-1]), 1) if shift else logits
            logits[..., MASK] = -torch.inf
            nll = F.cross_entropy(logits.flatten(0, 1), x0.flatten(), reduction="none").view(4, L)
            loss = ((nll * hidden).sum(1) / hidden.sum(1)).mean() / (accum * world)
            loss.backward()
            total += loss.item()
            best = logits.detach().softmax(-1).amax(-1).masked_fill(~hidden, 0)
            streams[rank].advance(best, best)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(total)
    return losses


def losses(run):
    return [line["loss"] for line in run.state.log_history if "loss" in line]


@pytest.mark.parametrize(("family", "accum"), [*((name, 1) for name in FAMILIES), ("qwen2", 2)])
def test_three_updates_are_a_loop_by_hand(family, accum, tmp_path):
    net = make(family)
    expected = by_hand(copy.deepcopy(net), 3, accum)
    run = trainer(net, tmp_path, accum=accum)
    run.train()
    assert losses(run) == pytest.approx(expected, rel=2e-4)


def test_what_a_trainer_is_given(tmp_path):
    """Epochs in place of steps; what cannot be trained on, or is not used, is one sentence."""
    given = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=2, per_device_train_batch_size=8, use_cpu=True,
        report_to="none", disable_tqdm=True, save_strategy="no", logging_steps=1,
        eval_strategy="epoch",
    )  # fmt: skip
    how = dict(method="puma_plus", chains_from=None, eval_dataset=ROWS)
    run = hf.PumaTrainer(make("bert"), given, ROWS, MASK, **how)
    run.train()
    assert run.state.global_step == 15 and run.begin is None  # 2 * 60 / 8; never sure
    assert [line["step"] for line in run.state.log_history if "eval_loss" in line] == [8, 15]
    given.learning_rate = 0.0
    run = hf.PumaTrainer(run.model, given, ROWS, MASK, **how)
    loader = run.get_train_dataloader()
    run.streams["masks"].sure.fill_(0.9)
    run.get_train_dataloader = lambda: loader
    run.train()
    assert run.begin == 0
    x0, prompt = (part.clone() for part in ROWS.tensors)
    for token, message in (MASK, "the mask token 89"), (V, "tokens up to 90, the model 90"):
        x0[:, -1] = token
        with pytest.raises(ValueError, match=message):
            hf.PumaTrainer(run.model, given, TensorDataset(x0, prompt), MASK).train()
    for wrong in {"method": "pmua"}, {"policy": "pmua"}, {"K": 0}, {"tau": 7}, {"train_dataset": 1}:
        with pytest.raises(ValueError, match=f"{min(wrong)}"):
            hf.PumaTrainer(run.model, given, ROWS, MASK, **wrong)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "qwen3", "llama")]


@pytest.mark.parametrize("family", ["modernbert", "qwen2", *SLOW])
def test_a_resumed_run_ends_as_one_that_never_stopped(family, tmp_path):
    whole = trainer(make(family), tmp_path / "whole", 7, method="puma_plus", buffer=2)
    whole.train()
    trainer(make(family), tmp_path / "part", 3, method="puma_plus", buffer=2).train()
    rest = trainer(make(family), tmp_path / "part", 7, method="puma_plus", buffer=2)
    rest.train(resume_from_checkpoint=True)
    assert losses(whole)[3:] == losses(rest)[-4:]
    assert same(whole.model.state_dict(), rest.model.state_dict())
    name = "checkpoint-7/chains_0_of_1.pt"
    assert same(*(torch.load(tmp_path / each / name) for each in ("whole", "part")))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "qwen2"])
def test_two_processes(family, tmp_path):
    (tmp_path / "run.py").write_text(RUN.format(folder=Path(__file__).parent, family=family))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += [tmp_path / "run.py"]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "losses.json").read_text())
    assert found.pop() == pytest.approx(trainer(make(family), tmp_path).evaluate(ROWS))
    assert found == pytest.approx(by_hand(make(family), 3, 2, world=2), rel=1e-3)


RUN = """
import json, sys
sys.path[:0] = ["{folder}", "{folder}/..", "{folder}/../.."]
import test_hf as t
from pathlib import Path
here = Path(__file__).parent
run = t.trainer(t.make("{family}"), here / "out", accum=2)
found = run.evaluate(t.ROWS)
run.train()
if run.args.process_index == 0:
    (here / "losses.json").write_text(json.dumps([*t.losses(run), found]))
t.torch.distributed.destroy_process_group()  # else its threads may abort the end of the process
"""


@torch.no_grad()
def test_evaluation_by_hand(tmp_path):
    """Row by row, of what the model has written, but for one token before an end, one after."""
    net = make("qwen2").eval()
    scored = hf.Scored(net, MASK, True)
    prompt = ROWS.tensors[1][:6]
    x0, _ = sample.generate(scored, ROWS.tensors[0][:6], ~prompt, policies.top_k, 3)
    x0[0, 0] = end = x0[1, 8].item()  # in a prompt it ends nothing
    x0, _ = sample.generate(scored, x0, ~prompt, policies.top_k, 3)
    x0[1, 9] = 1 + (x0[1, 9] == 1)
    x0[2, 4] = 1 + (x0[2, 4] == 1)
    masks, states = [], []

    def look(x0, hidden):
        p = scored.logits(scored(x0.masked_fill(hidden, MASK)[None]))[0].softmax(-1)
        return -p[range(L), x0].log()[hidden].mean().item(), p.amax(-1)[None]

    for number in range(6):
        puma.draw_from(number)
        _, u, score = torch.rand(1), torch.rand(1), torch.rand(L).masked_fill(prompt[number], -1)
        hidden, stage, ended = ~prompt[number, None], torch.zeros(1).long(), False
        effective = hidden.sum(1)
        masks.append(look(x0[number], score.argsort().argsort() >= L - 1 - int(u * effective))[0])
        while not ended:
            loss, best = look(x0[number], hidden[0])
            states.append(loss)
            chain = hidden, stage, effective, best, best, torch.rand(1)
            hidden, stage, ended = puma.step(*chain, 4, 0.3)
    run = trainer(net.train(), tmp_path, end=end)
    expected = [5 / 6, sum(masks) / 6, sum(states) / len(states)]
    for size, rel in (1, 1e-4), (4, 0.2):  # other masks
        run.args.per_device_eval_batch_size = size
        found = run.evaluate(TensorDataset(x0, prompt))
        assert [*found.values()][:3] == pytest.approx(expected, rel=rel)
    assert net.training
    for rows in None, {"a": ROWS}, datasets.Dataset.from_dict({"input_ids": [[1]]}):
        with pytest.raises(ValueError, match=r"expected rows\[indices\] -> x0, prompt, not "):
            run.evaluate(rows)


def test_a_run_does_not_feel_its_evaluation(tmp_path):
    args = dict(eval_strategy="steps", eval_steps=1, save_steps=1, load_best_model_at_end=True)
    trainer(make("bert"), tmp_path / "a", 4, method="puma_plus", buffer=2).train()
    how = dict(method="puma_plus", buffer=2, args=args, eval_dataset=ROWS)
    run = trainer(make("bert"), tmp_path / "b", 4, **how)
    run.train()
    for name in "optimizer", "chains_0_of_1":
        assert same(*(torch.load(tmp_path / f"{x}/checkpoint-4/{name}.pt") for x in "ab"))
    found = [line["eval_loss"] for line in run.state.log_history if "eval_loss" in line]
    assert run.evaluate()["eval_loss"] == min(found) != found[-1]
    with pytest.raises(ValueError, match="eval_dataset"):
        trainer(make("bert"), tmp_path, args={"eval_strategy": "epoch"})


@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_logits_are_those_of_the_library(family):
    net = make(family).eval()
    shift = net.config.model_type in ("qwen2", "qwen3", "llama")
    hf.check(net, MASK)
    scored = hf.Scored(net, MASK, shift)
    x = torch.randint(MASK, (2, L))
    other = x.clone()
    other[:, -1] = (x[:, -1] + 1) % MASK
    with torch.no_grad():
        expected = net(input_ids=x).logits
        logits = scored.logits(scored(x))
        moved = (scored.logits(scored(other))[:, 1] - logits[:, 1]).abs().nan_to_num()
    assert moved.max() > 1e-4  # it sees both sides
    assert (logits[..., MASK] == -torch.inf).all()
    a, b = (logits[:, 1:], expected[:, :-1]) if shift else (logits, expected)
    torch.testing.assert_close(a[..., :MASK], b[..., :MASK], rtol=1e-4, atol=1e-5)


LETTERS = [chr(97 + i) for i in range(26)]


def write_model(folder, family):
    """Random weights, and a tokenizer whose ids are letters."""
    words = {word: i for i, word in enumerate(["<end>", "<mask>", "\n", *LETTERS])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<end>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    special = {"eos_token": "<end>"} | ({"mask_token": "<mask>"} if family == "bert" else {})
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **special)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    FAMILIES[family]().save_pretrained(folder)


def command(out, *flags, world=1):
    """What lab/hf.py prints, of as many processes."""
    torchrun = f"-m torch.distributed.run --standalone --nproc_per_node={world}".split()
    call = [sys.executable, *torchrun * (world > 1), "lab/hf.py", f"--out_dir={out}", *flags]
    done = subprocess.run(call, cwd=ROOT, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("family", "world"), [("bert", 1), ("qwen2", 2)])
def test_the_command(family, world, tmp_path):
    """From a folder and a file to shares, and on from there; copying two letters is learned."""
    write_model(tmp_path / "model", family)
    pairs = itertools.product(LETTERS, LETTERS)
    rows = [json.dumps({"question": a + b, "answer": b + a}) + "\n" for a, b in pairs]
    rows[7] = json.dumps({"question": "ah", "answer": None}) + "\n"
    random.Random(0).shuffle(rows)
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    flags = f"--data={tmp_path}/rows.jsonl --length=7 --held_out=50 --lr=0.003 --batch_size=16"
    flags = [*flags.split(), "--K=2"]
    begin = f"--model={tmp_path}/model", "--max_iters=1000", "--method=mdm"
    printed = command(tmp_path / "mdm", *begin, *flags, world=world)
    assert "675 of 676 rows can be used, dropped: 1 unusable; held out: 50" in printed
    trained = tmp_path / "plus"
    printed += command(trained, f"--model={tmp_path}/mdm", "--max_iters=20", *flags, world=world)
    shares = [float(share) for share in re.findall(r"(\S+) % right", printed)]
    assert len(shares) == 2 * len(hf.samplers)
    assert shares[0] > 40, printed  # by guessing 0.1
    assert shares[len(hf.samplers)] > 5, printed  # 20 updates at a new rate
    kept = json.loads((trained / "eval.json").read_text())
    solved = [record["solved"] for record in kept.values()]
    assert [round(100 * share, 1) for share in solved] == shares[len(hf.samplers) :]
    assert len([*trained.glob("checkpoint-*/chains_*.pt")]) == world  # they know of each other
    first, coder = (hf.coder_of(folder)[0] for folder in (tmp_path / "model", trained))
    assert coder.mask_token_id == first.mask_token_id == (1 if family == "bert" else len(first) - 1)
    assert coder("ab\n").input_ids == first("ab\n").input_ids
    assert hf.load(str(trained))[1] == (family == "qwen2")


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
    trainer(net, tmp_path, steps=2, bf16=bf16).train()
    assert casts == [bf16] * 2  # the head's products, too
    moved = {name for name, p in net.state_dict().items() if not torch.equal(p, before[name])}
    assert moved and all("lora_" in name for name in moved)


def test_models_that_this_would_get_wrong_are_refused(tmp_path, monkeypatch):
    past = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZE, num_key_value_heads=2))
    with pytest.raises(ValueError, match="qwen2: its states do not see what follows"):
        hf.check(past, MASK)
    config = transformers.Gemma2Config(**SIZE, **GROUPS, head_dim=8, final_logit_softcapping=0.1)
    with pytest.raises(ValueError, match="gemma2: its logits are not its head times its states"):
        hf.check(transformers.Gemma2ForCausalLM(config), MASK)
    make("bert").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no tokenizer"):
        hf.coder_of(str(tmp_path))
    transformers.T5Config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="an encoder with a decoder"):
        hf.load(str(tmp_path))
    for name, value in dict(load=lambda *_: (past, True), model="past", data="here").items():
        monkeypatch.setattr(hf, name, value)
    with pytest.raises(ValueError, match="length=256: past has positions for 32 tokens"):
        hf.start()


def test_no_code_of_a_folder_runs(tmp_path, monkeypatch):
    """Nor is the user asked, who might say yes."""
    monkeypatch.setattr("builtins.input", lambda _: "y")
    form = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(form))
    (tmp_path / "evil.py").write_text(f"open('{tmp_path}/ran', 'w')")
    with pytest.raises(ValueError, match="trust_remote_code"):
        hf.load(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_runs_of_other_settings_are_not_taken_for_these(tmp_path, monkeypatch):
    monkeypatch.setattr(hf, "out_dir", str(tmp_path))
    hf.claim({"K": 8, "samplers": [(1, 1.0)]})
    hf.claim({"K": 8, "samplers": [(2, 1.0)]})  # measured, not trained
    with pytest.raises(ValueError, match="was made with another K: choose another"):
        hf.claim({"K": 4})


def test_settings_that_cannot_be(monkeypatch):
    for settings, message in (
        ({"model": ""}, "expected --model=FOLDER and --data=FILE.jsonl"),
        ({"grad_accum": 3}, "batch_size=32 does not split into 1 processes, grad_accum=3"),
        ({"chains_from": 1000}, "chains_from=1000: expected an update before max_iters=1000"),
        ({"K": 256}, "K=256: expected fewer tokens than the length=256"),
    ):
        with monkeypatch.context() as patch, pytest.raises(ValueError, match=message):
            for name, value in ({"model": "here", "data": "here"} | settings).items():
                patch.setattr(hf, name, value)
            hf.start()


FORGETFUL = SimpleNamespace(  # a tokenizer without the word "unknown"
    encode=lambda text: [*text.replace("unknown", "").encode()],
    decode_text=lambda ids: bytes(ids).decode(),
    end=0,
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", "cannot read .*rows.jsonl: "),
        ('{"question": "a", "answer": "b"}\n \n', "1 of 1 rows .*dropped: none: held_out=1 leaves"),
        ('{"question": "a", "answer": "unknown"}\n', "0 of 1 rows .*dropped: 1 empty"),
        ('{"question": "unknown", "answer": "b"}\n', "1 of 1 rows"),
        ('{"question": "a", "answer": "[MASK] b"}\n', "0 of 1 rows .*dropped: 1 has_mask"),
    ],
)
def test_files_that_are_no_rows(text, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "rows.jsonl").write_text(text)
    monkeypatch.setattr(hf, "data", str(tmp_path / "rows.jsonl"))
    monkeypatch.setattr(hf, "held_out", 1)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises((ValueError, OSError), match=message):
        hf.read(SimpleNamespace(mask_token="[MASK]", chat_template=None), FORGETFUL)
    assert ("tokenizer changes 1 of the first" in capsys.readouterr().out) == ("unknown" in text)


def byte_tokenizer(template):
    """256 bytes and some special tokens, with a chat template."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    plain = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(False, use_regex=False)
    plain.decoder = tokenizers.decoders.ByteLevel()
    names = ["<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_end|>"]
    special = dict(bos_token="<|begin|>", eos_token="<|end|>", mask_token="<|mask|>")
    special |= dict(additional_special_tokens=names, chat_template=template)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **special)


def template(begin, head, middle, end):
    """A chat template: each turn is head, role, middle, text, end."""
    turn = f"{{{{ '{head}' + m['role'] + '{middle}' + m['content'] + '{end}' }}}}"
    start = f"{{% if add_generation_prompt %}}{{{{ '{head}assistant{middle}' }}}}{{% endif %}}"
    return f"{begin}{{% for m in messages %}}{turn}{{% endfor %}}{start}"


MARKS = {
    "qwen2": ("", "<|im_start|>", "\\n", "<|im_end|>\\n"),
    "llama3": ("<|begin|>", "<|start_header_id|>", "<|end_header_id|>\\n\\n", "<|eot_id|>"),
}


@pytest.mark.parametrize("name", MARKS)
@pytest.mark.parametrize("form", ["fields", "messages", "saved"])
def test_a_chat_template(name, form, tmp_path, monkeypatch, capsys):
    tokenizer = byte_tokenizer(template(*MARKS[name]))
    turns = [{"role": "user", "content": "hi?"}, {"role": "assistant", "content": "yo"}]
    empty = [turns[0], {"role": "assistant", "content": ""}]
    rows = [{"messages": each} for each in (turns, turns, empty)]
    if form == "fields":
        rows = [dict(question=a["content"], answer=b["content"]) for a, b in (turns, turns, empty)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if form == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(path := tmp_path / "saved")
    for key, value in {"data": str(path), "chat": True, "held_out": 1, "length": 99}.items():
        monkeypatch.setattr(hf, key, value)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    coder = SimpleNamespace(end=tokenizer.eos_token_id)
    rows, _ = hf.read(tokenizer, coder)
    x0, given = rows[0]
    begin, head, middle, end = (mark.replace("\\n", "\n") for mark in MARKS[name])
    expected = f"{begin}{head}user{middle}hi?{end}{head}assistant{middle}"
    assert tokenizer.decode(x0[given]) == expected
    assert tokenizer.decode(x0[~given]).rstrip("<|end>") == f"yo{end}".rstrip("<|end>")
    assert "2 of 3 rows can be used, dropped: 1 unusable" in capsys.readouterr().out


def test_labels_say_what_is_given(tmp_path, monkeypatch):
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, -100, 8]}] * 2
    rows += [{"input_ids": [5], "labels": [-100]}, {"input_ids": [5] * 9, "labels": [5] * 9}]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    for name, value in {"data": f"{tmp_path}/rows.parquet", "held_out": 1, "length": 6}.items():
        monkeypatch.setattr(hf, name, value)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    train, test = hf.read(SimpleNamespace(chat_template=None), SimpleNamespace(end=3))
    assert len(train) == 1 and test[0].tolist() == [[5, 6, 7, 8, 3, 3]]
    assert test[1].tolist() == [[True, False, True, False, False, False]]


def test_no_head_is_made_up(tmp_path):
    make("bert").bert.save_pretrained(tmp_path)
    with pytest.raises(SystemExit, match=r"lacks cls\.predictions"):
        hf.load(str(tmp_path))
