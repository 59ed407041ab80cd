"""The dry run: shipped updates on fake CUDA tensors, and its counters beside a real CPU run.

Its shim is loaded before torch, so cases are forks of a child without torch.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import ONE_THREAD, ROOT

TORCH = Path(importlib.util.find_spec("torch").origin).parent
CUDA = (TORCH / "lib" / "libtorch_cuda.so").exists()
pytestmark = pytest.mark.skipif(CUDA or not shutil.which("g++"), reason="needs g++, torch for CPUs")
CHILD = r"""
import json, os, re, sys
from studies import dry_run
from studies.dry_run import *
from torch.utils.flop_counter import FlopCounterMode

def dry(config, device):
    found = measure(config, device)
    return {
        key: {"waits": each.waits, "pageable": each.pageable, **each.seen}
        if isinstance(each, SimpleNamespace) else each for key, each in found.items()
    }

def memory(name):
    return 1024 * int(re.search(name + r":\s*(\d+)", Path("/proc/self/status").read_text())[1])

def real(config, device):
    rows, train.batch_size = train.batch_size, 2
    train.update(DryRun(config, torch.device(device)), 0)  # what libraries allocate once
    train.batch_size = rows
    before = memory("VmRSS")
    run = DryRun(config, torch.device(device))
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    with FlopCounterMode(display=False) as counter:
        train.update(run, 0)
    return {"peak": memory("VmHWM") - before, "flop": counter.get_total_flops()}

for name, how, device, planted, own, flags in json.loads(sys.argv[1]):
    if os.fork() == 0:
        try:
            vars(dry_run).update(own)
            config = configure(vars(train), flags, fields=tasks.settings_of)
            exec(planted)
            result = globals()[how](config, device)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        print("FOUND", json.dumps([name, result]), flush=True)
        os._exit(0)
    os.wait()
"""


SUDOKU, TEXT, DREAM = "config/sudoku.py", "config/tinygsm.py", "config/dream_coder.py"
SMALL = {  # ids with the mask token, and tokens, of its examples
    "addition": (11, 31), "gsm_mini": (1502, 176), "gsm_tiny": (1502, 128), "own_text": (258, 256),
    "small": (27, 21), "sudoku_mini": (7, 36), "sudoku_nine": (10, 81), "sudoku_tiny": (7, 36),
    "text_mini": (70, 128),
}  # fmt: skip
FAULTS = {
    "item": "import losses; mean = losses.row_mean; "
    "losses.row_mean = lambda nll, *rest: mean(nll * (nll.sum().item() == 0), *rest)",
    "on the CPU": "import puma; puma.uniform = lambda n, generator: torch.rand(n)",
    "doubled": "import model; silu = model.F.silu; model.F.silu = lambda x: silu(x.float())",
}


def run(cases):
    """{name: what is found}; of cases as below."""
    command = [sys.executable, "-c", CHILD, json.dumps(cases)]
    own = os.environ | ONE_THREAD | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # then all is freed at once
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True)
    lines = [line[6:] for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert len(lines) == len(cases), done.stderr[-2000:]
    return dict(map(json.loads, lines))


def case(name, *flags, how="dry", device="cuda", fault="", **own):
    return name, how, device, FAULTS.get(fault, ""), own, [*flags, "--compile=False"]


@pytest.fixture(scope="module")
def found():
    small = (
        case(name, f"config/{name}.py", vocab_size=ids, length=tokens)
        for name, (ids, tokens) in SMALL.items()
    )
    return run([
        case("sudoku", SUDOKU), case("text", TEXT, processes=8), *small,
        *(case(fault, SUDOKU, fault=fault) for fault in FAULTS),
        case("whole", SUDOKU, "--batch_size=128", processes=2),
        case("shards", SUDOKU, "--batch_size=128", "--shard=True", processes=2),
        case("real", SUDOKU, how="real", device="cpu"), case("cpu", SUDOKU, device="cpu"),
    ])  # fmt: skip


def waits(found):
    """Of an update, by file: lines move."""
    update = found["an update"]
    assert not any(update["pageable"].values())
    return Counter(line.split(":")[0] for line, n in update["waits"].items() for _ in range(n))


def products(rows, L, dim, layers, mlp, kv, backward):
    """FLOP of the layers; backward: products in it for each one in the forward pass."""
    weights = 2 * dim * dim + 2 * dim * kv + 3 * dim * mlp
    return layers * 2 * rows * L * ((1 + backward) * weights + 7 * L * dim)  # flash: 2 and 5


# A pass of the layers, of the head at the positions where it is needed; TFLOP
def test_flop_memory_and_waits_of_sudoku(found):
    update = found["sudoku"]["an update"]
    flop = products(64, 81, 256, 8, 768, 256, 2) + 6 * 64 * 81 * 10 * 256
    assert update["flop"] == pytest.approx(flop, rel=0.01)
    assert not waits(found["sudoku"])
    assert update["peak"] < 0.75 * 2**30


def test_flop_memory_and_waits_of_the_text_model(found):
    """The host waits once, to know how many positions are hidden."""
    update, kinds = found["text"]["an update"], found["text"]["kinds"]
    hidden = 32 * 512 * 0.8 * (1 + 1 / 12**2) / 2
    flop = products(32, 512, 512, 14, 1536, 512, 2) + 6 * hidden * 151_645 * 512
    assert update["flop"] == pytest.approx(flop, rel=0.01)
    assert waits(found["text"]) == {"losses.py": 1}
    assert update["peak"] < 12.5 * 2**30
    weights = 4 * (151_645 * 512 + 14 * (4 * 512**2 + 3 * 512 * 1536 + 5 * 512) + 512)
    for kind, copies in {"weights": 1, "averages": 1, "moments": 2}.items():
        assert kinds[kind] == pytest.approx(copies * weights, rel=0.001)


@pytest.mark.slow
def test_flop_memory_and_waits_of_dream_coder():
    """With frozen weights and recomputation: 3 products for each weight, 4 for adapters' 6."""
    found = run([case("dream", DREAM, "--batch_size=64", processes=8)])["dream"]
    dim, layers, mlp, kv, rank = 3584, 28, 18_944, 512, 128
    tokens, hidden = 8 * 640, 8 * 640 * 0.8 * (1 + 1 / 43**2) / 2
    flop = products(8, 640, dim, layers, mlp, kv, 2) + layers * 2 * tokens * 2 * 640 * dim
    ends = 2 * (dim + dim) + 2 * (dim + kv) + 3 * (dim + mlp)
    flop += layers * tokens * 2 * rank * ends * 4 + 4 * hidden * 152_064 * dim
    update = found["an update"]
    assert update["flop"] == pytest.approx(flop, rel=0.01)
    assert waits(found) == {"losses.py": 1}
    assert update["peak"] < 23 * 2**30


@pytest.mark.parametrize("name", SMALL)
def test_small_configurations_are_updated(found, name):
    """Where the vocabulary is large, the host waits for a count of hidden positions.

    In some, the queue's next look at how many examples are used up is due.
    """
    rest = waits(found[name]) - Counter({"engine/queue.py": 1})
    assert rest == ({"losses.py": 1} if SMALL[name][0] > 64 else {})


def test_faults_are_noticed(found):
    assert waits(found["item"]) == {"losses.py": 1}
    assert "at least two devices, cuda:0 and cpu" in found["on the CPU"]["error"]
    assert found["doubled"]["an update"]["peak"] > 0.85 * 2**30


def test_gradients_are_reduced_and_weights_split_on_a_fake_process_group(found):
    """DDP's buckets hold the gradients; FSDP2's shards are half of all."""
    alone, whole, shards = (found[name] for name in ("sudoku", "whole", "shards"))
    assert waits(whole) == {} and waits(shards) == {"engine/sharding.py": 1}  # the norm
    for kind in "weights", "averages", "moments":
        assert whole["kinds"][kind] == alone["kinds"][kind]
        assert shards["kinds"][kind] == pytest.approx(alone["kinds"][kind] / 2, rel=0.01)
    for each in whole, shards:
        assert each["an update"]["flop"] == alone["an update"]["flop"]


def test_counters_agree_with_a_real_update_on_the_cpu(found):
    """FLOP by torch's own counter, memory by the kernel's, of tensors that hold values."""
    update, real = found["cpu"]["an update"], found["real"]
    print({name: (update[name], real[name]) for name in real})
    assert update["flop"] == pytest.approx(real["flop"], rel=0.01)
    assert update["peak"] == pytest.approx(real["peak"], rel=0.05)
