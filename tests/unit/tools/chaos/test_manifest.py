"""A campaign's file: what is right is read, and a mistake is named with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.base.errors import UserError
from ftrun.tools.chaos.campaign import strangers
from ftrun.tools.chaos.manifest import KINDS, Fault, read
from tests.process.test_campaign import CAMPAIGN

HEAD = 'schema = "ftrun.chaos/1"\n'
FAULT = '\n[[fault]]\nat_step = 7\ndo = "kill"\n'


def test_the_campaign_of_the_documents_is_right() -> None:
    found = read(CAMPAIGN)
    assert found.seed == 39 and found.faults[1] == Fault(260, "stop", "2", lasts_s=0.3)


def test_a_replica_that_has_not_started_yet_is_no_stranger() -> None:
    """A campaign may begin as soon as its job does."""
    status: Any = {"job": {"replicas": 3}, "replicas": [{"replica_id": "0"}]}
    assert strangers(read(CAMPAIGN), status) == []
    status["job"]["replicas"] = 2
    assert strangers(read(CAMPAIGN), status) == ["2"]


def test_every_kind_is_read(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    text = HEAD + '[proxy]\nlisten = "127.0.0.1:0"\nto = "127.0.0.1:29510"\n'
    values = {"replica": "1", "worker": "0", "lasts": '"2s"', "delay": '"5ms"'}
    for kind, keys in KINDS.items():
        text += f'[[fault]]\nat_step = 7\ndo = "{kind}"\n'
        text += "".join(f"{key} = {values[key]}\n" for key in keys)
    file.write_text(text)
    found = read(file)
    assert [fault.kind for fault in found.faults] == list(KINDS)
    assert found.faults[4] == Fault(7, "slow", None, 0, 2.0, 0.005)
    assert found.to == "127.0.0.1:29510"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("schema = 1\n" + FAULT, 1, "ftrun.chaos/1"),
        (HEAD, 1, "give one to"),
        (HEAD + "sed = 3\n" + FAULT, 2, "Did you mean seed"),
        (HEAD + FAULT.replace("kill", "kil"), 5, "Did you mean kill"),
        (HEAD + FAULT + "lasts = '2s'\n", 6, "not known here"),
        (HEAD + FAULT.replace("7", '"7"'), 4, "a whole number"),
        (HEAD + FAULT.replace("kill", "stop"), 5, "stop needs lasts"),
        (HEAD + FAULT.replace("kill", "stop") + "lasts = 'long'\n", 6, "give a time"),
        (HEAD + FAULT + "worker = -1\n", 6, "from 0"),
        (HEAD + FAULT + FAULT.replace("7", "6"), 8, "before the fault above"),
        (HEAD + FAULT.replace("kill", "slow") + "lasts='1s'\ndelay='1s'\n", 5, "needs a [proxy]"),
        (HEAD + "[proxy]\nlisten = '127.0.0.1:1'\n" + FAULT, 2, "needs listen and to"),
        (HEAD + "[end]\npattern = 'end'\n" + FAULT, 3, "no group"),
        (HEAD + "[end]\npattern = '('\n" + FAULT, 3, "no regular expression"),
        (HEAD + "[end]\nundisturbed = 'x'\n" + FAULT, 3, "needs a pattern"),
        (HEAD + "fault = 3\n", 2, "give one to"),
        (HEAD + "seed = \n", 2, "not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(UserError) as told:
        read(file)
    assert f"line {line}" in str(told.value) and words in str(told.value), told.value
