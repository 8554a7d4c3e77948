"""The pure parts of the runner of real scripts; nothing is fetched and no script is run.

Not here: the scripts themselves (scripts/real_scripts).
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.real_scripts.rows import PACE, Change, Row, change_files, on_cpu, row_of, rows
from tests.real_scripts.running import PACE_FILE, form, says_back, unlike_replicas
from tests.real_scripts.verdicts import (
    HEAD,
    Result,
    Run,
    check_verdict,
    difference,
    is_alike,
    line_of,
    matches,
    totals,
    verdict,
)

ROWS_MIN, REPOSITORIES_MIN = 40, 25


def test_the_table_is_wide_enough_and_names_no_machine() -> None:
    found = rows()
    assert len(found) >= ROWS_MIN
    assert len({row.repository for row in found}) >= REPOSITORIES_MIN
    assert len({row.name for row in found}) == len(found)
    for row in found:
        assert len(row.commit) == 40, row.name
        assert row.files or row.lines, row.name
        assert not any(word in repr(row) for word in ("/tmp/", "/home/", "/root/")), row.name


def test_a_change_is_text_or_an_expression_and_must_find_its_place() -> None:
    assert Change("f", "a.b", "c").apply("a.b axb") == "c axb"
    assert Change("f", r"^(\w+) = 1$", r"\1 = 2", True).apply("x = 1\ny = 1") == "x = 2\ny = 2"
    with pytest.raises(ValueError, match="f has no 'z'"):
        Change("f", "z").apply("a")


def test_a_row_has_only_keys_that_are_known() -> None:
    known = {"name": "n", "family": "f", "repository": "o/n", "commit": "c", "script": "s.py"}
    row = row_of({**known, "changes": [["s.py", "re:a+", "b"], ["s.py", "c"]], "files": ["x"]})
    assert row.changes == (Change("s.py", "a+", "b", True), Change("s.py", "c"))
    assert row.files == ("x",)
    with pytest.raises(AssertionError):
        row_of({**known, "pacce": ""})


def test_what_needs_a_gpu_is_taken_away() -> None:
    text = """
import torch.distributed as dist
    assert torch.cuda.is_available(), "needs one"
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = rank % torch.cuda.device_count()
    model = DDP(model.cuda(gpu), device_ids=[args.gpu], output_device=args.gpu)
    x = x.to(args.local_rank).pin_memory()
    device = f"cuda:{rank}"
    if device.type == "cuda":
        pass
"""
    assert on_cpu(text).split("\n")[2:-1] == [
        "    pass",
        '    dist.init_process_group("gloo")',
        "    None",
        '    device = "cpu"',
        "    model = DDP(model, device_ids=None, output_device=None)",
        "    x = x",
        '    device = "cpu"',
        '    if device.type == "cuda":',
        "        pass",
    ]


def test_files_are_changed_seeded_and_paced(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text('"""A text."""\nfrom __future__ import annotations\nimport os\nstep()\n')
    row = Row("n", "f", "o/n", "c", "train.py", seeds="train.py", pace=("train.py", "step()"))
    change_files(row, tmp_path)
    lines = script.read_text().splitlines()
    assert lines[2].startswith("import torch")
    assert lines[3] == "import os"
    assert lines[4] == f"step(); {PACE}"
    ast.parse(script.read_text())


def test_each_step_waits_and_notes_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waits").write_text("0")
    notes = tmp_path / "notes"
    notes.mkdir()
    for name, value in {"STEP_PACE": PACE_FILE, "STEP_WAITS": tmp_path / "waits"}.items():
        monkeypatch.setenv(name, str(value))
    exec(PACE)
    monkeypatch.setenv("STEP_NOTES", str(notes))
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        exec(PACE)
    assert unlike_replicas(notes, 2) == []
    (notes / "rank-3").write_text("other")
    assert unlike_replicas(notes, 2) == ["at the end the parameters of rank 3 are not its peer's"]


def test_replicas_and_one_group_are_started_and_come_back_in_their_own_words() -> None:
    row = Row("n", "f", "o/n", "c", "train.py")
    assert form(row) == ["--replicas", "2"]
    assert form(replace(row, workers=3)) == ["--replicas", "2", "--workers-per-replica", "3"]
    assert form(replace(row, workers=3, replicas=1)) == ["--workers-per-replica", "3"]
    assert says_back("ftrun: Replica 1 joined at step 5. The quorum is now all\n", "1")
    mended = "ftrun: worker 0.1 (pid 7) died: SIGKILL. Its replacement repeated the work since step 4 from memory. All continued after 0.5 s, and no step was lost. Restart 1 of 10.\n"  # noqa: E501
    assert says_back(mended, "0.1")
    assert not says_back(mended, "0.0")
    assert says_back(mended, "0") and not says_back(mended, "1")
    fell = "ftrun: worker 0.1 (pid 7) died: SIGKILL. After 1 s all resumed from step 4.\n"
    assert not says_back(fell, "0.1")


def test_matches_are_groups_without_the_labels_of_ranks() -> None:
    output = "[0.0] step 1: loss 2.5\n[default1]:step 1: loss 2.5\nother\n"
    assert matches(output, [r"^step (\d+): loss (\S+)"]) == [["1 2.5", "1 2.5"]]


def _end(digest: str, epoch: int, best: float, output: str) -> dict[str, object]:
    weight = ["float32[2]", digest, True]
    return {"a.pt": {"w": weight, "epoch": epoch, "best": best}, "output": [[output]]}


def test_two_ends_are_compared_to_the_bit_or_by_their_form() -> None:
    one = _end("aa", 3, 0.5, "1 2.0")
    same = _end("aa", 3, 0.5, "1 2.0")
    near = _end("bb", 3, 0.6, "1 2.2")
    later = _end("aa", 4, 0.5, "1 2.0")
    assert difference(one, same, None) == ""
    assert (
        difference(one, near, None)
        == "a.pt: w is ['float32[2]', 'aa', True] and ['float32[2]', 'bb', True] (2 of 3)"
    )
    assert difference(one, near, 0.5) == ""
    assert difference(one, later, 0.5) == "a.pt: epoch is 3 and 4 (1 of 3)"
    assert difference(one, {"output": [["1 2.0"]]}, 0.5) == "a.pt is missing"
    assert difference({"output": [["1", "2"]]}, {"output": [["2", "1"]]}, None) == ""
    assert difference({"output": [["1"]]}, {"output": [[]]}, 0.5) == "output: 1 and 0 matches"


@pytest.mark.parametrize(
    ("one", "other", "is_so"),
    [
        (["f[1]", "a", True], ["f[1]", "b", True], True),
        (["f[1]", "a", True], ["f[2]", "a", True], False),
        (["f[1]", "a", True], ["f[1]", "b", False], False),
        (3, 4, False),
        (1.0, 1.4, True),
        (1.0, 3.0, False),
        (True, 1.0, True),
        ("epoch 3 loss 1.0", "epoch 3 loss 1.2", True),
        ("epoch 3 loss 1.0", "epoch 4 loss 1.0", False),
        ("a", "b", False),
        ("12 %", "16 %", True),
        ("epoch 3: 1", "epoch 4: 1", False),
    ],
)
def test_near_values(one: object, other: object, is_so: bool) -> None:
    assert is_alike(one, other, 0.5) == is_so


def _run(end: dict[str, object], **more: object) -> Run:
    return Run(0, end={"output": [], **end}, **more)  # type: ignore[arg-type]


def test_the_words_for_a_run() -> None:
    plain = _run({"a": {"w": ["f[1]", "x", True]}})
    other = _run({"a": {"w": ["f[1]", "y", True]}})
    killed = _run({"a": {"w": ["f[1]", "y", True]}}, killed=["0", "1"], joined=["0", "1"])
    assert verdict(plain, plain, True, 0.5) == "same"
    assert verdict(other, plain, True, 0.5).startswith("differs (a: w is ")
    assert verdict(other, plain, False, 0.5) == "same"
    assert verdict(killed, plain, True, 0.5) == "same"
    odd = "the Net (a.py:3) of this rank, which was its own"
    named = f"restored from its peers: i 0→4; not restored: x (set), {odd}\n"
    lacks = replace(killed, output=named)
    assert verdict(lacks, plain, True, 0.5) == f"differs (not carried: {odd})"
    killed.joined = ["0"]
    assert verdict(killed, plain, True, 0.5) == "fails (replica 1 was not back)"
    killed.killed = ["0.1"]
    assert verdict(killed, plain, True, 0.5) == "fails (worker 0.1 was not back)"
    killed.killed = killed.joined = ["0", "1"]
    assert verdict(killed, plain, True, None).startswith("differs (a: w is ")
    killed.joined = ["0"]
    killed.killed = ["0"]
    assert verdict(killed, plain, True, 0.5) == "fails (ended before the second kill)"
    late = Run(143, is_late=True, output="[0.0] waiting\n")
    assert verdict(late, plain, True, 0.5) == "hangs (waiting)"
    dead = Run(72, output="[0.0] ValueError: bad\n[0.0] more\n")
    assert verdict(dead, plain, True, 0.5) == "fails (exit code 72: ValueError: bad)"
    again = Run(
        0,
        output="ftrun: LBFGS (x.py:3). ftrun restarts the job as torchrun would: …",
        end=plain.end,
    )
    assert verdict(again, plain, True, 0.5) == "one world (LBFGS (x.py:3))"
    unequal = Run(0, end=plain.end, unequal=["replica 1 has diverged"])
    assert verdict(unequal, plain, True, 0.5) == "differs (replica 1 has diverged)"


def test_the_verdict_of_check() -> None:
    assert check_verdict(0, "ftrun check: ok: the script heals\n") == "ok"
    assert (
        check_verdict(1, "ftrun check: carried: x\nftrun check: FAILED: y\n")
        == "not ok (FAILED: y)"
    )
    assert check_verdict(1, "ftrun check: not carried: LBFGS\n") == "not ok (not carried: LBFGS)"
    assert check_verdict(1, "") == "not ok (no verdict)"
    named = "ftrun check: the newcomer could not be given: its own y\n"
    assert check_verdict(0, f"{named}ftrun check: ok: it heals\n") == "ok"
    found = check_verdict(1, f"{named}ftrun check: FAILED: z\n")
    assert found == "not ok (the newcomer could not be given: its own y)"
    assert not Result("a", True, "same", "same", found).is_wrong
    assert Result("a", True, "same", "same", "not ok (FAILED: y)").is_wrong


def test_the_table_and_its_totals() -> None:
    good = Result("a", True, "same", "same", "ok")
    wrong = Result("b", False, "same", "fails (x)", "ok")
    alone = Result("c", True, "one world (LBFGS)", "one world", "not ok (not carried: LBFGS)")
    assert [good.is_wrong, wrong.is_wrong, alone.is_wrong] == [False, True, False]
    lines = [line_of(r, "o/n", "0" * 40, "s.py", "vision") for r in (good, wrong, alone)]
    assert all(line.count(" | ") == HEAD[0].count(" | ") for line in lines)
    text = totals(lines)
    assert text.startswith("3 scripts from 1 repositories. Undisturbed the same: 2 of 3; ")
    assert "one world, for the reason named: 1" in text
    assert "healed in full: 1 of 3" in text
    assert "Wrong verdicts of `ftrun check`: 1." in text
