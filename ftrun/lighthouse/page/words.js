// Figures in words. Not here: where they are shown.

/** The uses of a replica's time, in the order of the bands (docs/ACCOUNT.md). */
export const USES = [
  "training", "outside", "waiting", "repairing", "healing", "starting",
  "backoff", "no quorum", "stopped", "absent", "running", "drained", "finished",
];
const SENSES = {
  outside: "outside a step", waiting: "waiting for a peer", backoff: "restarting",
  "no quorum": "without a quorum", stopped: "standing still", running: "running, steps unknown",
};
const SHORT_S = 60, HOUR_S = 3600, DAY_S = 86400, KIBI = 1024;

/** A use as the page calls it. */
export function useInWords(use) { return SENSES[use] || String(use); }

/** What a replica does. One that was given up counts its time as drained. */
export function stateInWords(replica) {
  if (replica.is_hung) return "hangs";
  return isGivenUp(replica) ? replica.phase : useInWords(replica.use);
}

export function isGivenUp(replica) { return replica.phase === "given up"; }

/** The class that gives a use its colour; a use of a later ftrun has none. */
export function useClass(use) {
  return USES.includes(use) ? "use-" + use.replace(" ", "-") : "use-absent";
}

/** "8 s", "12 min", "3 h 5 min", "2 d 4 h". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds > 0 && seconds < 0.05) return "< 0.1 s";
  if (seconds < 9.95) return (seconds ? seconds.toFixed(1) : "0") + " s";
  if (seconds < SHORT_S) return Math.floor(seconds) + " s";
  const whole = Math.floor(seconds);
  if (whole < 600) return Math.floor(whole / 60) + " min " + (whole % 60) + " s";
  if (whole < HOUR_S) return Math.floor(whole / 60) + " min";
  if (whole < DAY_S) return Math.floor(whole / HOUR_S) + " h " + Math.floor(whole % HOUR_S / 60) + " min";
  return Math.floor(whole / DAY_S) + " d " + Math.floor(whole % DAY_S / HOUR_S) + " h";
}

/** A duration for an axis: one unit only. */
export function roundDuration(seconds) {
  for (const [unit, name] of [[DAY_S, "d"], [HOUR_S, "h"], [SHORT_S, "min"]]) {
    if (seconds >= unit) return number(seconds / unit) + " " + name;
  }
  return number(seconds) + " s";
}

/** At most three significant digits; whole numbers in full, with thin spaces. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e9)) return value.toExponential(2);
  if (Number.isInteger(value) || size >= 100) {
    return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u2009");
  }
  return String(Number(value.toPrecision(3)));
}

/** "98.7 %", of a share from 0 to 1. */
export function percent(share) {
  return share === null || share === undefined ? "–" : (share * 100).toFixed(1) + " %";
}

/** "3.2 GiB". */
export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= KIBI && unit < names.length - 1) { count /= KIBI; unit += 1; }
  return number(count) + " " + names[unit];
}

/** "1 replica", "3 replicas". */
export function counted(count, one, many = one + "s") {
  return number(count) + " " + (count === 1 ? one : many);
}

/** Replicas in words, at most four by name. */
export function named(replicas) {
  if (replicas.length > 4) return replicas.slice(0, 3).join(", ") + " and " + (replicas.length - 3) + " more";
  return replicas.length < 2 ? replicas.join("") : replicas.slice(0, -1).join(", ") + " and " + replicas.at(-1);
}
