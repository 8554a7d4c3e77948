// The facts of the whole job: header, figures, charts, incidents, changes, scalars.
//
// Every text goes in as text, never as markup: names, scalars and errors come from scripts.

import { drawBands, drawCurve, drawSpark, follow, showCursor, spans } from "./charts.js";
import * as words from "./words.js";

const UP = new Set(["member", "draining"]);
const LISTED_MAX = 20, SCALARS_MAX = 32, SPARK_MAX = 120, LONG_WAIT_S = 5;

const $ = (id) => document.getElementById(id);
const pointer = { share: null };
const past = new Map();
let last = null;

/** Let the charts answer the pointer. */
export function startOverview() {
  for (const id of ["rate", "members", "account"]) {
    follow($(id), (share) => { pointer.share = share; if (last) drawCharts(last); });
  }
  addEventListener("resize", () => { if (last) drawCharts(last); });
}

/** Show a status. */
export function showOverview(status) {
  last = status;
  const job = status.job;
  $("job").textContent = job.job_id || "No agent has come yet";
  document.title = (job.job_id ? job.job_id + " · " : "") + "ftrun";
  const quorum = status.quorum;
  $("facts").textContent = [
    "up " + words.duration(job.uptime_s),
    quorum ? `quorum ${quorum.name} for ${words.duration(quorum.age_s)}` : "no quorum",
    words.counted(status.agents.length, "node"),
  ].join("  ·  ");
  showFigures(status);
  showWait(status);
  drawCharts(status);
  showIncidents(status.incidents);
  showChanges(status.history);
  showScalars(status.scalars);
}

/** Make an element with a class and a text. */
export function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

function showFigures(status) {
  const account = status.account, rate = status.rate, wanted = status.job.replicas;
  const up = status.replicas.filter((replica) => UP.has(replica.phase)).length;
  const open = status.incidents.filter((incident) => incident.is_open).length;
  const figures = [
    ["Replicas up", `${words.number(up)} / ${words.number(wanted)}`, `at least ${status.job.min_replicas}`, up < wanted],
    ["Step", words.number(status.step), account.steps === status.step ? "" : words.counted(account.steps, "step") + " since the start"],
    ["Steps per second", words.number(rate.now), "over the run " + words.number(rate.run)],
    ["Goodput", words.percent(account.goodput), "of all replicas' time"],
    ["Time lost", words.duration(account.lost_s), "replica-seconds"],
    ["Restarts", words.number(status.restarts), open ? words.counted(open, "open incident") : "no open incident", open > 0],
  ];
  const place = $("figures");
  while (place.children.length < figures.length) {
    const figure = element("div", "figure");
    figure.append(element("div", "name"), element("div", "value"), element("div", "more"));
    place.append(figure);
  }
  figures.forEach(([name, value, more, alarm], i) => {
    const figure = place.children[i];
    figure.classList.toggle("alarm", Boolean(alarm));
    [name, value, more].forEach((text, j) => { setText(figure.children[j], text); });
  });
}

function showWait(status) {
  const wait = status.waiting, line = $("waiting");
  const isLong = wait !== null && wait.since_s > LONG_WAIT_S;
  line.classList.toggle("long", isLong);
  if (!isLong) { setText(line, ""); return; }
  const whom = wait.whom.length ? " of " + words.named(wait.whom) : "";
  const limit = wait.at_most_s === null ? "" : `, for ${words.duration(wait.at_most_s)} at most`;
  setText(line, `The job waits for ${wait.for}${whom}, since ${words.duration(wait.since_s)}${limit}.`);
}

function drawCharts(status) {
  const bands = status.account.bands, times = spans(bands), total = times.length ? times.at(-1)[1] : 0;
  const replicas = Math.max(1, status.job.replicas);
  const incidents = status.incidents.map((i) => total - i.ago_s).filter((s) => s >= 0);
  const second = pointer.share === null ? null : pointer.share * total;
  const at = second === null ? -1 : Math.max(0, times.findIndex(([, to]) => second <= to));
  const ago = second === null ? "" : words.duration(total - second) + " ago: ";

  // The last band has just begun: a rate over a fraction of a second would only jump.
  const settled = times.filter(([from, to]) => to - from > bands.width_s / 2 || times.length === 1);
  const rates = settled.map(([from, to], i) => [from, to, to > from ? bands.steps[i] / (to - from) : 0]);
  showCursor($("rate"), drawCurve($("rate"), rates, total, { incidents }), second);
  $("rate-readout").textContent = at < 0 || !rates[at] ? words.number(status.rate.now) + " now" : ago + words.number(rates[at][2]);

  const length = times.map(([from, to]) => Math.max(to - from, 1e-6));
  const share = (use) => (bands.seconds[use] || []).map((s, i) => s / length[i]);
  const training = share("training").map((value, i) => [...times[i], value]);
  showCursor($("members"), drawCurve($("members"), training, total, { wanted: replicas, incidents, stepped: true }), second);
  const now = status.replicas.filter((replica) => replica.use === "training").length;
  $("members-readout").textContent = at < 0 || !training[at] ? `${now} of ${replicas} now` : ago + words.number(training[at][2]);

  const used = words.USES.filter((use) => bands.seconds[use]);
  const shares = used.map((use) => [use, share(use)]);
  showCursor($("account"), drawBands($("account"), times, shares, total, replicas, incidents), second);
  const there = shares.map(([use, values]) => [use, values[at]]).filter(([, value]) => value > 0.004);
  $("account-readout").textContent = at < 0
    ? words.duration(status.account.total_s) + " of all replicas together"
    : ago + there.map(([use, value]) => `${words.useInWords(use)} ${words.number(value)}`).join(", ");
  showLegend(status.account, words.USES.filter((use) => status.account.seconds[use] > 0));
}

function showLegend(account, used) {
  keyed($("legend"), used, (use) => use, () => {
    const item = element("li");
    item.append(element("span", "dot"), element("span", "word"), element("span", "sum"));
    return item;
  }, (item, use) => {
    item.children[0].className = "dot " + words.useClass(use);
    setText(item.children[1], words.useInWords(use) + " ");
    const seconds = account.seconds[use];
    setText(item.children[2], `${words.percent(account.total_s > 0 ? seconds / account.total_s : 0)}, ${words.duration(seconds)}`);
  });
}

function showIncidents(incidents) {
  const newest = [...incidents].reverse().slice(0, LISTED_MAX);
  $("incidents-readout").textContent = incidents.length ? "newest first" : "";
  keyed($("incidents"), newest, (x) => x.number, listItem, (item, incident) => {
    const who = incident.replicas.length === 1 ? "Replica " : "Replicas ";
    const costs = [incident.cost_steps ? words.counted(incident.cost_steps, "step") : "",
      `${words.duration(incident.cost_s)} of replicas' time`].filter(Boolean).join(" and ");
    fill(item, [
      `${who}${words.named(incident.replicas)}${incident.host ? " on " + incident.host : ""}, step ${words.number(incident.step)}`,
      incident.is_open ? "open" : words.duration(incident.ago_s) + " ago",
      incident.words, `${incident.verdict ? sentence(incident.verdict) + " " : ""}Cost ${costs}.`,
    ], incident.is_open);
  }, "None so far.");
}

function showChanges(changes) {
  const newest = [...changes].reverse().slice(0, LISTED_MAX);
  $("changes-readout").textContent = changes.length ? "newest first" : "";
  keyed($("changes"), newest, (x) => `${x.kind} ${x.quorum} ${x.reason}`, listItem, (item, change) => {
    fill(item, [
      `${change.quorum ? "Quorum " + change.quorum + ", " : ""}${change.kind}${change.step === null ? "" : ", step " + words.number(change.step)}`,
      change.under_way ? "under way" : words.duration(change.ago_s) + " ago",
      change.reason,
      `Took ${words.duration(change.duration_s)}${change.cost_s > 0 ? ", cost " + words.duration(change.cost_s) + " of replicas' time" : ""}` +
        `${change.members.length ? "; " + words.counted(change.members.length, "member") : ""}.`,
    ], change.under_way);
  }, "None so far.");
}

function showScalars(scalars) {
  const names = Object.keys(scalars).sort().slice(0, SCALARS_MAX);
  $("scalars-card").hidden = names.length === 0;
  for (const name of past.keys()) if (!names.includes(name)) past.delete(name);
  keyed($("scalars"), names, (name) => name, () => {
    const item = element("div");
    item.append(element("dt"), element("dd"), document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    item.children[2].setAttribute("aria-hidden", "true");
    return item;
  }, (item, name) => {
    const values = past.get(name) || [];
    values.push(scalars[name]);
    if (values.length > SPARK_MAX) values.shift();
    past.set(name, values);
    setText(item.children[0], name);
    setText(item.children[1], words.number(scalars[name]));
    drawSpark(item.children[2], values);
  });
}

/** Keep one child per item, in order; a child stays the same element while its key stays. */
export function keyed(place, items, keyOf, make, update, nothing) {
  const old = new Map([...place.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, i) => {
    const key = String(keyOf(item));
    const child = old.get(key) || make();
    old.delete(key);
    child.dataset.key = key;
    if (place.children[i] !== child) place.insertBefore(child, place.children[i] || null);
    update(child, item);
  });
  while (place.children.length > items.length) place.lastChild.remove();
  if (!items.length && nothing) place.append(element("li", "none", nothing));
}

/** Set a text only where it differs, so that a selection and a screen reader are left alone. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

function listItem() {
  const item = element("li"), head = element("div", "head");
  head.append(element("span", "who"), element("span", "when"));
  item.append(head, element("div", "words"), element("div", "cost"));
  return item;
}

function fill(item, [who, when, said, cost], isOpen) {
  const [first, second] = item.children[0].children;
  setText(first, who); setText(second, when);
  second.classList.toggle("open", isOpen);
  setText(item.children[1], said); setText(item.children[2], cost);
}

