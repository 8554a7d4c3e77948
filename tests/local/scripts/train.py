"""A script of torchft that trains locally in one of several forms, and kills itself now and then.

``train.py FORM KILLS SEED``. Each process appends its global weights' hash after each outer step to
a file; jobs.py compares them.
"""

import contextlib
import glob
import hashlib
import logging
import os
import random
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD

FORM, KILLS, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
SYNC_EVERY, STEPS_BETWEEN, STEPS_AFTER = 8, 5, 10
REPLICAS = int(os.environ["NUM_REPLICA_GROUPS"])
REPLICA = int(os.environ["REPLICA_GROUP_ID"])
FORMS = {
    "local": {},
    "plain": {},
    "streaming": {"fragment_sync_delay": 2, "fragment_update_alpha": 0.25},
    "buckets": {"use_bucketization": True, "bucket_cap_mb": 1},
    "quantised": {"should_quantize": True},
}

torch.set_num_threads(1)
torch.manual_seed(os.getpid())
model = nn.Sequential(nn.Linear(64, 600), nn.Tanh(), nn.Linear(600, 600), nn.Linear(600, 8))
inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)


def load_state_dict(state):
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["inner"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
    min_replica_size=1,
    load_state_dict=load_state_dict,
    state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
    use_async_quorum=FORM == "local",
    timeout=timedelta(seconds=60),
)
if FORM == "local":
    local = LocalSGD(manager, model, inner, sync_every=SYNC_EVERY)
else:
    parts = [model[0:2], model[2:4]] if FORM == "streaming" else [model]
    local = DiLoCo(manager, parts, inner, outer, sync_every=SYNC_EVERY, **FORMS[FORM])


def digest():
    found = hashlib.sha256()
    tensors = list(model.parameters())
    if FORM != "local":
        tensors = [t for f in local._fragments for t in f.original_parameters.values()]
        state = outer.state_dict()["state"]
        tensors += [state[key]["momentum_buffer"] for key in sorted(state)]
    for tensor in tensors:
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()[:16]


class Here:
    """The place of the training thread, for the thread that kills."""

    inner_step, is_in_step, dying = 0, False, False


def kill_soon(number, numbers):
    time.sleep(numbers.uniform(0, 0.04))
    with open(f"died.{number}", "w") as file:
        is_in_step = int(manager.session.machine.in_step)
        file.write(f"{REPLICA} {manager.current_step()} {Here.inner_step} {is_in_step}")
    os.kill(os.getpid(), signal.SIGKILL)


def maybe_die(steps_together):
    number = len(glob.glob("died.*"))
    numbers = random.Random(f"{SEED} {FORM} {number}")
    victim, step = numbers.randrange(REPLICAS), STEPS_BETWEEN + numbers.randrange(4)
    at = numbers.randrange(local._sync_every)
    due = steps_together >= step and Here.inner_step == at
    if number < KILLS and victim == REPLICA and due and not Here.dying:
        Here.dying = True
        threading.Thread(target=kill_soon, args=(number, numbers), daemon=True).start()


class Decisions(logging.Handler):
    """The decisions of this process: how many steps were committed, and how many not."""

    all = lost = 0

    def emit(self, record):
        Decisions.all += 1
        Decisions.lost += not record.commit_result


logger = logging.getLogger("torchft_commits")
logger.setLevel(logging.INFO)
logger.addHandler(Decisions())
results = Path(f"digests.{REPLICA}.{os.getpid()}")
numbers = torch.Generator().manual_seed(os.getpid())
together = 0
with local:
    while True:
        inner.zero_grad()
        inputs = torch.randn((16, 64), generator=numbers)
        (model(inputs) - inputs[:, :8].sin()).square().mean().backward()
        maybe_die(together)
        Here.inner_step = local._local_step
        before = Decisions.all
        inner.step()
        if Decisions.all == before:
            continue
        state = manager.state_dict()
        with results.open("a") as file:
            file.write(f"{state['step']} {state['lineage']} {digest()} {Decisions.lost}\n")
        together = together + 1 if manager.num_participants() == REPLICAS else 0
        all_killed = len(glob.glob("died.*")) == KILLS
        if all_killed and together == STEPS_BETWEEN and not os.path.exists("end"):
            draft = Path(f"end.draft.{REPLICA}")
            draft.write_text(str(state["step"] + STEPS_AFTER))
            with contextlib.suppress(FileExistsError):
                os.link(draft, "end")
        if os.path.exists("end") and state["step"] >= int(Path("end").read_text()):
            break
Path(f"done.{REPLICA}").touch()
for _ in range(6000):  # a peer may still lack the last result, which would be reduced again
    if len(glob.glob("done.*")) == REPLICAS:
        break
    time.sleep(0.01)
print(f"END step {state['step']} weights {digest()}", flush=True)
