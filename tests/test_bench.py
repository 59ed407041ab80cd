"""Speed: the formulas against torch's counter, and every part at a tiny shape."""

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import bench
import pytest
import torch
from conftest import FORKS, run_script
from torch.autograd import DeviceType
from torch.utils.flop_counter import FlopCounterMode

from engine import machine

SUDOKU = bench.Shape(
    5, 16, dim=16, layers=2, heads=2, mlp=24, tied=False, rows=3, K=4, Ks=(8, 4, 2),
    buffer=2, warmup=1, theirs=("--steps=8",), box=(2, 2),
)  # fmt: skip
TEXT = SUDOKU._replace(words=103, tied=True, prompt=4, box=None, buffer=1)
ALONE = bench.Alone
FAKE = 'import json, sys\nprint(json.dumps({"seconds": 2, "sequences_per_second": 4, "peak_gb": 8}'
FAKE += ' | {"flags": sys.argv[1:]}))'


class Here(contextlib.nullcontext):
    """In place of bench.Alone: the same in this process, which takes no seconds to start."""

    def __init__(self, kind, setting):
        self.made = kind(setting)

    def __enter__(self):
        return self

    def ask(self, name, *args):
        return getattr(self.made, name)(*args)


@pytest.fixture
def tiny(monkeypatch):
    """bench.py at tiny shapes, in this process."""
    monkeypatch.setattr(bench, "SHAPES", {"sudoku": SUDOKU, "text": TEXT})
    monkeypatch.setattr(bench, "PROCESSES", FORKS)
    monkeypatch.setattr(bench, "Alone", Here)
    monkeypatch.setattr(bench.transformer, "SHORT", 128)  # a trainer sets it
    monkeypatch.setattr(bench, "LARGE", (64, 64))
    values = {"device": "cpu", "dtype": "float32", "compile": False, "rounds": 2, "reference": ""}
    for name, value in values.items():
        monkeypatch.setattr(bench, name, value)
    return monkeypatch


@pytest.fixture
def apart(tiny):
    """The same in processes of their own, as they are."""
    tiny.setattr(bench, "Alone", ALONE)
    return tiny


def setting(shape, method="puma"):
    data = bench.Puzzles(shape.box) if shape.box else bench.Noise(shape)
    return bench.Setting(shape, data, method, 4, 3, 2, 128, "cpu", "float32", False)


def measured(part, tiny, capsys):
    """What a part prints: numbers by name, ratios by name, and the table for people."""
    tiny.setattr(bench, "parts", [part])
    bench.main()
    out, errors = capsys.readouterr()
    machine, *lines = map(json.loads, out.splitlines())
    assert machine["device"] == "cpu" and machine["threads"] == 1 and machine["versions"]
    assert machine["dtype"] == "float32" and machine["compiled"] is False
    assert {line["part"] for line in lines} == {part}
    ratios = {line["ratio of"]: line for line in lines if "ratio of" in line}
    return {line["what"]: line for line in lines if "what" in line}, ratios, errors


@pytest.mark.parametrize("shape", [SUDOKU, TEXT], ids=["all positions", "hidden positions"])
def test_products_of_a_step_are_those_that_torch_counts(shape):
    def in_place(total, a, b, **_):
        return 2 * a[0] * a[1] * b[1]

    trainer = bench.Trainer(setting(shape))
    mapping = {torch.ops.aten.addmm_: in_place}  # of the head's gradient
    for _ in range(3):
        with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
            hidden = trainer.step()
        assert counter.get_total_flops() == bench.step_flop(shape, 3, hidden.sum().item())


def test_products_of_solving_are_those_that_torch_counts():
    solver = bench.Solver(setting(SUDOKU))
    with FlopCounterMode(display=False) as counter:
        _, passes, flop = solver.solve()
    assert counter.get_total_flops() == flop and passes > 5


def test_the_baseline_hides_as_much_as_puma():
    puma, mdm = (bench.Trainer(setting(TEXT, method)) for method in ("puma", "mdm"))
    seconds, hidden = puma.steps(5)
    assert len(seconds) == 5 and min(seconds) > 0
    assert mdm.steps(5, hidden)[1] == hidden
    assert mdm.steps(5)[1] != hidden  # alone it draws the number, of 1 to 12
    assert {1, 12} <= {n for row in mdm.steps(100)[1] for n in row} <= {*range(1, 13)}


@pytest.mark.parametrize("part, where", [("step", "apart"), ("text_step", "tiny")])
def test_steps_of_both_methods(part, where, capsys, request):
    found, ratios, table = measured(part, request.getfixturevalue(where), capsys)
    for name in ("puma", "mdm"):
        one = found[name]
        seconds = one["ms_per_step"] / 1e3
        assert one["from"] <= one["to"] and one["rows"] == 3
        assert one["sequences_per_second"] == pytest.approx(3 / seconds, rel=1e-2)
        assert one["tokens_per_second"] == pytest.approx(3 * 16 / seconds, rel=1e-2)
        share = one["tflop_per_second"] / one["matrix_tflop_per_second"]
        assert 0 < one["share_of_matrix_rate"] == pytest.approx(share, rel=1e-2)
        assert 0.1 < one["peak_gb"] < 10 and "launches" not in one
        assert f"| {part} | {name} | 3 |" in table
    assert found["puma"]["K"] == 4 and found["puma"]["stages"] == 4 and "K" not in found["mdm"]
    if part == "text_step":
        assert found["puma"]["hidden_per_step"] == found["mdm"]["hidden_per_step"]
    assert ratios.keys() == {"seconds, puma over mdm"}
    assert f"| {part} | seconds, puma over mdm |" in table


@pytest.mark.parametrize("method", ["puma", "mdm"])
def test_a_method_alone_with_other_rows_and_stages(method, tiny, capsys):
    for name, value in {"mode": method, "rows": 5, "k": 2}.items():
        tiny.setattr(bench, name, value)
    found, ratios, _ = measured("step", tiny, capsys)
    assert [*found] == [method] and not ratios and found[method]["rows"] == 5
    assert found[method].get("stages") == (8 if method == "puma" else None)


def test_many_stages_against_few(tiny, capsys):
    found, ratios, _ = measured("text_stages", tiny, capsys)
    assert [one["stages"] for one in found.values()] == [2, 4, 8]
    assert [*ratios] == [f"seconds, {n} stages over 2 stages" for n in (4, 8)]
    for one in found.values():  # in a chain's first state all is hidden, then less and less
        share = 1 / 2 + 1 / 2 / one["stages"] ** 2
        assert one["hidden_per_step"] == pytest.approx(3 * 12 * share, rel=0.15)


def test_kernels_of_attention(tiny, capsys):
    found, ratios, _ = measured("attention", tiny, capsys)
    assert [*found] == ["fused", "plain products"] and len(ratios) == 1


@pytest.mark.parametrize("part", ["step", "sample"])
def test_another_reference(part, tiny, capsys, tmp_path):
    (tmp_path / "their_code.py").write_text(FAKE)
    tiny.syspath_prepend(tmp_path)
    tiny.setenv("PYTHONPATH", str(tmp_path))
    tiny.setattr(bench, "reference", "their_code")
    found, ratios, _ = measured(part, tiny, capsys)
    theirs = {"part": part, "what": "reference", "sequences_per_second": 4, "peak_gb": 8}
    unit = "step" if part == "step" else "batch"
    assert found["reference"] == theirs | {f"ms_per_{unit}": 2000}
    name = "sequences" if part == "step" else "puzzles"
    ours = found["puma" if part == "step" else "ours"]
    rate = ratios[f"{name}/s, ours over reference"]
    middle = (rate["from"] + rate["to"]) / 2  # of two rounds
    assert rate["median"] == pytest.approx(middle, abs=2e-3)
    assert rate["from"] * 0.99 <= ours[f"{name}_per_second"] / 4 <= rate["to"] * 1.01


def test_the_reference_takes_method_and_rows_and_runs_on_a_cpu_only(tiny):
    tiny.setattr(bench, "reference", "studies.conventional")
    flags = "--what=step", "--method=mdm", "--batch=1", "--shape=sudoku", "--steps=3"
    theirs = bench.Reference(torch.device("cpu"), *flags)
    theirs.measure()
    assert theirs.found[0]["method"] == "mdm" and theirs.found[0]["batch"] == 1
    elsewhere = bench.Reference(torch.device("cuda"), *flags)
    elsewhere.measure()
    assert not elsewhere.found


def test_what_is_finished_is_printed_before_a_part_fails(tiny, capsys):
    def broken(where):
        yield {"what": "first half", "ms_per_step": 1.5}
        raise KeyboardInterrupt

    tiny.setattr(bench, "PARTS", {"broken": broken})
    tiny.setattr(bench, "parts", ["broken"])
    with pytest.raises(SystemExit, match="interrupted"):
        bench.main()
    out, errors = capsys.readouterr()
    assert json.loads(out.splitlines()[1])["ms_per_step"] == 1.5
    assert "| broken | first half | 1.5 |" in errors


def test_a_process_that_fails_is_told_and_none_is_left(apart):
    with bench.Alone(bench.Trainer, setting(SUDOKU)) as trainer:
        assert len(trainer.ask("steps", 2)[0]) == 2
        with pytest.raises(RuntimeError, match="the measuring process has died"):
            trainer.ask("steps", "two")
    assert trainer.process.exitcode is not None


def test_kernels_and_copies_of_a_profile_are_counted_without_annotations():
    def event(device, elapsed, annotation=False):
        span = SimpleNamespace(elapsed_us=lambda: elapsed)
        kind = DeviceType.CUDA if device else DeviceType.CPU
        return SimpleNamespace(device_type=kind, time_range=span, is_user_annotation=annotation)

    events = [event(True, 1000), event(True, 3000), event(False, 500), event(True, 9000, True)]
    assert bench.on_device(events, steps=4) == {"device_ms": 1.0, "launches": 0.5}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_peak_memory_is_what_the_system_says():
    block = torch.ones(1 << 26)  # 256 MB
    (line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x]
    peak = machine.peak_memory(torch.device("cpu"))
    assert peak == pytest.approx(int(line.split()[1]) * 1024, rel=0.015) and peak > block.nbytes


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--parts=[]", "parts is empty"),
        ("--parts=['speed']", "parts ['speed']: expected step"),
        ("--mode=ar", "mode 'ar': expected compare, puma, mdm"),
        ("--reference=no.such", "reference 'no.such': expected a module"),
        ("--reference=conventional.py", "reference 'conventional.py': expected a module"),
        ("--rows=0", "rows 0: expected 1 <= rows"),
        ("--k=0", "k 0: expected 1 <= k"),
        ("--dtype=float16", "dtype 'float16'"),
        ("--device=meta", "device meta"),
    ],
)
def test_mistakes_are_named(flag, message, refused):
    assert message in refused(run_script, "bench.py", flag)
