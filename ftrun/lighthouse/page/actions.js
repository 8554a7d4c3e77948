// A replica's detail, and what people ask of it: drain, restart, kill (asks first), stacks.

import { operate, operation } from "./connection.js";
import { element, setText } from "./overview.js";
import { noteOf } from "./replicas.js";
import * as words from "./words.js";

const ASKS_MAX = 30;
const $ = (id) => document.getElementById(id);
const dialog = $("detail"), choices = $("choices"), confirm = $("confirm");
let replicaId = null, latest = null, turn = 0;

/** Wire the dialog's buttons. */
export function startActions() {
  for (const button of choices.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      if (button.dataset.command === "kill") askFirst(); else act(button.dataset.command);
    });
  }
  $("confirm-no").addEventListener("click", () => { showConfirm(false); choices.querySelector(".danger").focus(); });
  $("confirm-yes").addEventListener("click", () => { showConfirm(false); act("kill"); });
  $("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => { replicaId = null; turn += 1; });
}

/** Open the dialog on one replica. */
export function openDetail(id) {
  replicaId = id;
  turn += 1;
  showConfirm(false);
  busy(false);
  say("", false);
  $("stacks").replaceChildren();
  setText($("detail-title"), "Replica " + id);
  if (latest) showDetail(latest);
  dialog.showModal();
}

/** Bring the dialog up to date, if it is open. */
export function showDetail(status) {
  latest = status;
  const replica = status.replicas.find((r) => r.replica_id === replicaId);
  if (!replica) return;
  const workers = replica.workers || [];
  const facts = [
    ["Now", `${words.stateInWords(replica)}, ${noteOf(replica)}`],
    ["Phase", replica.phase + (replica.worker_phase ? `, its worker: ${replica.worker_phase}` : "")],
    ["Step", words.number(replica.step)],
    ["Node", replica.host || "none"],
    ["Restarts", `${replica.restarts}${replica.restarts_left === null ? "" : `, ${replica.restarts_left} left`}`],
    ...workers.map((w) => [`Worker ${w.group_rank}`, `pid ${w.pid}, ${w.device}${w.node ? ` on ${w.node}` : ""}, memory ${words.bytes(w.rss_bytes)}`]),
    ...(replica.last_event ? [["Last event", `${replica.last_event.text} (${words.duration(replica.last_event.ago_s)} ago)`]] : []),
  ];
  $("detail-facts").replaceChildren(...facts.flatMap(([k, v]) => [element("dt", "", k), element("dd", "", v)]));
}

function askFirst() {
  const count = latest ? latest.job.workers_per_replica : 1;
  setText($("confirm-words"), `Kill replica ${replicaId}? Its ${count === 1 ? "worker gets" : count + " workers get"} SIGKILL at once. ` +
    "The others train on, and it is started again and heals, if its restarts allow it.");
  setText($("confirm-yes"), `Kill replica ${replicaId}`);
  showConfirm(true);
  $("confirm-no").focus();
}

async function act(command) {
  const mine = turn, replica = replicaId;
  busy(true);
  $("stacks").replaceChildren();
  say("Asked. The lighthouse passes it on …", false);
  try {
    let found = await operate({ command, replica });
    for (let asked = 0; found.state === "under way" && asked < ASKS_MAX && mine === turn; asked += 1) {
      say(found.text || "Under way …", false);
      found = await operation(found.operation);
    }
    if (mine === turn) { say(`${found.text} (${found.state})`, found.state === "failed"); showStacks(found.stacks); }
  } catch (error) {
    if (mine === turn) say(`It was not done: ${error.message}`, true);
  } finally {
    if (mine === turn) busy(false);
  }
}

function showStacks(stacks) {
  $("stacks").replaceChildren(...stacks.flatMap((stack) => {
    const pre = element("pre", "", stack.text || "It gave none.");
    pre.tabIndex = 0;
    return [element("h3", "", `Worker ${stack.replica_id}.${stack.group_rank}`), pre];
  }));
}

function say(text, refused) {
  setText($("outcome"), text);
  $("outcome").classList.toggle("refused", refused);
}

function busy(is) { for (const button of choices.querySelectorAll("button")) button.disabled = is; }

function showConfirm(is) { confirm.hidden = !is; choices.hidden = is; }
