// Charts as SVG, drawn by hand: a curve over time, and the account as stacked bands.
//
// All share one axis of time, from the account's first band to now. No style attributes: the page's
// policy forbids them. Not here: which figures are drawn (overview.js).

import { roundDuration, number, useClass } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 38, RIGHT = 6, TOP = 10, BOTTOM = 22;
const TICKS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200,
  86400, 172800, 432000, 864000, 2592000];
const TICK_PX = 92;

/** The beginning and end of each band in seconds since the account began. */
export function spans(bands) {
  const count = bands.steps.length;
  return bands.steps.map((_, i) => [
    i * bands.width_s, i === count - 1 ? i * bands.width_s + bands.last_s : (i + 1) * bands.width_s,
  ]);
}

/** A curve through the middles of the bands; `points` are [begin, end, value]. */
export function drawCurve(svg, points, total, { wanted = null, incidents = [], stepped = false }) {
  const highest = Math.max(...points.map((p) => p[2]), 1e-9);
  const frame = begin(svg, total, wanted === null ? niceTop(highest) : wanted);
  if (points.length) {
    const line = points.flatMap(([from, to, value]) => {
      const y = frame.y(value);
      return stepped ? [[frame.x(from), y], [frame.x(to), y]] : [[frame.x((from + to) / 2), y]];
    });
    line.unshift([frame.x(points[0][0]), line[0][1]]);
    line.push([frame.x(points.at(-1)[1]), line.at(-1)[1]]);
    const d = "M" + line.map(([x, y]) => x.toFixed(1) + " " + y.toFixed(1)).join("L");
    const floor = frame.y(0).toFixed(1);
    add(svg, "path", { class: "under", d: `${d}L${line.at(-1)[0].toFixed(1)} ${floor}L${line[0][0].toFixed(1)} ${floor}Z` });
    add(svg, "path", { class: "curve", d });
  }
  if (wanted !== null) rule(svg, "wanted", frame.left, frame.right, frame.y(wanted), frame.y(wanted));
  mark(svg, frame, incidents);
  return frame;
}

/** One area per use, stacked, in replicas. `shares`: [use, value of each band]. */
export function drawBands(svg, spansOfBands, shares, total, replicas, incidents) {
  const frame = begin(svg, total, replicas);
  const floors = spansOfBands.map(() => 0);
  for (const [use, values] of shares) {
    const upper = [], lower = [];
    spansOfBands.forEach(([from, to], i) => {
      const low = floors[i], high = low + values[i];
      floors[i] = high;
      upper.push([frame.x(from), frame.y(high)], [frame.x(to), frame.y(high)]);
      lower.push([frame.x(from), frame.y(low)], [frame.x(to), frame.y(low)]);
    });
    const d = [...upper, ...lower.reverse()].map(([x, y]) => x.toFixed(1) + " " + y.toFixed(1)).join("L");
    if (d) add(svg, "path", { class: useClass(use), d: "M" + d + "Z" });
  }
  mark(svg, frame, incidents);
  return frame;
}

/** A small line of the last values. */
export function drawSpark(svg, values) {
  clear(svg);
  const width = svg.clientWidth || 180, height = svg.clientHeight || 30;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const known = values.filter((v) => v !== null);
  if (known.length < 2) return;
  const low = Math.min(...known), high = Math.max(...known);
  const points = known.map((value, i) => [
    i / (known.length - 1) * width, height - 3 - (high === low ? 0.5 : (value - low) / (high - low)) * (height - 6),
  ]);
  add(svg, "path", { class: "curve", d: "M" + points.map((p) => p.map((x) => x.toFixed(1)).join(" ")).join("L") });
}

/** Tell `moved` the second under the pointer, and null when it leaves. */
export function follow(svg, moved) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    moved(Math.min(1, Math.max(0, (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT))));
  });
  svg.addEventListener("pointerleave", () => moved(null));
}

/** A line where the pointer is; null: none. */
export function showCursor(svg, frame, second) {
  if (second !== null) rule(svg, "cursor", frame.x(second), frame.x(second), frame.top, frame.bottom);
}

function begin(svg, total, top) {
  clear(svg);
  const width = svg.clientWidth || 600, height = svg.clientHeight || 168;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const frame = {
    left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM,
    x: (second) => LEFT + (total > 0 ? second / total : 0) * (width - LEFT - RIGHT),
    y: (value) => height - BOTTOM - value / top * (height - TOP - BOTTOM),
  };
  const levels = top <= 4 && Number.isInteger(top) ? top : 2;
  for (let i = 0; i <= levels; i += 1) {
    const value = top * i / levels, y = frame.y(value);
    rule(svg, "grid", frame.left, frame.right, y, y);
    label(svg, frame.left - 8, y + 4, "end", number(value));
  }
  const room = Math.max(1, Math.floor((frame.right - frame.left) / TICK_PX));
  const every = TICKS_S.find((s) => total / s <= room) || total;
  for (let ago = 0; ago <= total; ago += every) {
    const x = frame.x(total - ago);
    if (x < frame.left + 14 && ago) break;
    label(svg, x, height - 4, ago ? "middle" : "end", ago ? "−" + (every < 30 ? number(ago) + " s" : roundDuration(ago)) : "now");
  }
  return frame;
}

/** The least 1, 2, 2.5, 4, 5 or 10 times a power of ten above the value. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 4, 5, 10].find((x) => x * power >= value * 1.02) * power || value;
}

function mark(svg, frame, incidents) {
  for (const second of incidents) {
    const x = frame.x(second);
    rule(svg, "incident", x, x, frame.top, frame.bottom);
    add(svg, "path", { class: "flag", d: `M${x - 4} ${frame.top - 7}h8l-4 7z` });
  }
}

function clear(svg) { svg.replaceChildren(); }

function rule(svg, name, x1, x2, y1, y2) { add(svg, "line", { class: name, x1, x2, y1, y2 }); }

function label(svg, x, y, anchor, words) {
  add(svg, "text", { class: "label", x, y, "text-anchor": anchor }).textContent = words;
}

function add(svg, name, attributes) {
  const found = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  svg.append(found);
  return found;
}
