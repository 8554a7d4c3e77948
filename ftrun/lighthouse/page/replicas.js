// The table of replicas. Above 64 they are folded by node: a node opens with its button.

import { element, keyed, setText } from "./overview.js";
import * as words from "./words.js";

const FOLDED_ABOVE = 64, SLOW_FACTOR = 1.5, ROWS_MAX = 512;
const rows = document.getElementById("rows");
const open = new Set();
let latest = null, opened = () => {};

/** `detail` is called with a replica's id when a person asks for it. */
export function startReplicas(detail) { opened = detail; }

/** Show the replicas of a status. */
export function showReplicas(status) {
  latest = status;
  const typical = median(status.replicas.map((r) => r.own_s).filter((s) => s !== null));
  const folds = status.replicas.length > FOLDED_ABOVE;
  const items = folds ? folded(status.replicas) : status.replicas.map((replica) => ({ replica }));
  keyed(rows, items, (x) => (x.node ? "node " + x.node : "replica " + x.replica.replica_id), () => element("tr"),
    (row, item) => { if (item.node) showNode(row, item); else showReplica(row, item.replica, typical); });
  // A column without a single figure would only take room.
  rows.parentElement.classList.toggle("no-shares", !folds && status.replicas.every((r) => r.own_s === null));
  rows.parentElement.classList.toggle("no-devices", !folds && status.replicas.every((r) => !(r.workers || []).length));
  const sick = status.replicas.filter((r) => !["training", "running", "finished"].includes(r.use)).length;
  setText(document.getElementById("replicas-readout"),
    sick ? `${words.number(sick)} of ${words.number(status.replicas.length)} not training`
      : `all ${words.number(status.replicas.length)} ${status.replicas.some((r) => r.use === "running") ? "run" : "train"}`);
}

function folded(replicas) {
  const nodes = new Map();
  for (const replica of replicas) {
    const node = replica.host || "no node";
    if (!nodes.has(node)) nodes.set(node, []);
    nodes.get(node).push(replica);
  }
  const items = [];
  for (const [node, members] of nodes) {
    items.push({ node, members });
    if (open.has(node)) items.push(...members.slice(0, ROWS_MAX).map((replica) => ({ replica })));
  }
  return items;
}

function showNode(row, { node, members }) {
  if (!row.children.length) {
    row.className = "node";
    const toggle = element("button", "", "");
    toggle.type = "button";
    toggle.addEventListener("click", () => {
      if (!open.delete(node)) open.add(node);
      showReplicas(latest);
    });
    const cells = [element("td", "name-cell"), element("td", "use-cell"), element("td", "number"), element("td")];
    cells[3].colSpan = 5;
    cells.push(element("td"));
    cells[3].append(element("span", "share"));
    cells[4].append(toggle);
    row.append(...cells);
  }
  const [name, uses, step, bar, last] = row.children;
  setText(name, node);
  const counts = words.USES.map((use) => [use, members.filter((r) => r.use === use).length]).filter(([, n]) => n);
  setText(uses, counts.map(([use, n]) => `${n} ${words.useInWords(use)}`).join(", "));
  setText(step, words.number(Math.max(0, ...members.map((r) => r.step || 0))));
  keyed(bar.firstChild, counts, ([use]) => use, () => element("span"), (part, [use, n]) => {
    part.className = "part " + words.useClass(use);
    part.style.width = (n / members.length * 100).toFixed(2) + "%";
  });
  setText(last.firstChild, open.has(node) ? "Fold" : "Unfold");
  last.firstChild.setAttribute("aria-expanded", String(open.has(node)));
  last.firstChild.setAttribute("aria-label", `Replicas of ${node}`);
}

function showReplica(row, replica, typical) {
  if (!row.children.length) fillRow(row, replica.replica_id);
  const [name, use, step, time, own, restarts, node, device] = row.children;
  row.classList.toggle("alarm", replica.is_hung || words.isGivenUp(replica) || ["stopped", "no quorum", "backoff", "absent"].includes(replica.use));
  setText(name, replica.replica_id);
  const [word, note] = use.children;
  word.firstChild.className = "dot " + words.useClass(replica.use);
  setText(word.lastChild, words.stateInWords(replica));
  setText(note, noteOf(replica));
  setText(step, replica.step === null ? "" : words.number(replica.step));
  setText(time, replica.step_s === null ? "" : milliseconds(replica.step_s));
  showShare(own, replica, typical);
  const left = replica.restarts_left;
  setText(restarts, replica.restarts + (left === null ? "" : `, ${left} left`));
  setText(node, replica.host || "");
  setText(device, (replica.workers || []).slice(0, 8).map(deviceOf).join("\n"));
}

function fillRow(row, id) {
  const kinds = ["name-cell", "use-cell", "number step-cell", "number time-cell", "share-cell", "number restarts-cell", "node-cell", "device device-cell", ""];
  const cells = kinds.map((kind) => element("td", kind));
  [["2", "step"], ["3", "step time"], ["5", "restarts"]].forEach(([i, name]) => { cells[i].dataset.name = name; });
  const word = element("div", "word");
  word.append(element("span", "dot"), element("span", "said"));
  cells[1].append(word, element("div", "note"));
  const more = element("button", "", "More");
  more.type = "button";
  more.setAttribute("aria-label", `More about replica ${id}`);
  more.addEventListener("click", () => opened(id));
  cells[8].append(more);
  row.append(...cells);
}

/** What a replica does in more words: its heal, its pause, the time until its restart. */
export function noteOf(replica) {
  const heal = replica.heal;
  if (heal) {
    const part = heal.total_bytes ? `, ${Math.floor(heal.done_bytes / heal.total_bytes * 100)} % of ${words.bytes(heal.total_bytes)}` : "";
    return `${words.bytes(heal.done_bytes)}${part}`;
  }
  if (replica.restart_in_s !== null) return "starts again in " + words.duration(replica.restart_in_s);
  if (replica.pause !== null) return `${replica.pause || "a pause"}, ${words.duration(replica.pause_s)}`;
  return "for " + words.duration(replica.use_s);
}

function showShare(cell, replica, typical) {
  if (replica.step_s === null || replica.own_s === null || replica.step_s <= 0) { cell.replaceChildren(); return; }
  if (!cell.children.length) {
    const share = element("span", "share");
    share.append(element("span", "part"));
    cell.append(share, element("span", "share-words"));
  }
  const part = Math.min(1, replica.own_s / replica.step_s);
  const isSlow = latest.replicas.length > 2 && replica.own_s > typical * SLOW_FACTOR && replica.own_s > 0.005;
  cell.firstChild.classList.toggle("slow", isSlow);
  cell.firstChild.firstChild.style.width = (part * 100).toFixed(1) + "%";
  setText(cell.lastChild, milliseconds(replica.own_s) + (isSlow ? ", slower than its peers" : ""));
}

function deviceOf(worker) {
  if (worker.device !== "cpu" && worker.gpu_memory_bytes !== null) {
    const busy = worker.gpu_share === null ? "" : `, ${Math.round(worker.gpu_share * 100)} %`;
    return `${worker.device} ${words.bytes(worker.gpu_memory_bytes)}${busy}`;
  }
  const cpu = worker.cpu_share === null ? "" : `, ${Math.round(worker.cpu_share * 100)} % CPU`;
  return `${worker.device}${worker.rss_bytes === null ? "" : " " + words.bytes(worker.rss_bytes)}${cpu}`;
}

function milliseconds(seconds) {
  return seconds < 1 ? words.number(seconds * 1000) + " ms" : words.duration(seconds);
}

function median(values) {
  if (!values.length) return 0;
  return [...values].sort((a, b) => a - b)[Math.floor((values.length - 1) / 2)];
}
