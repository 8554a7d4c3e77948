// The page of a lighthouse: asks for a session, reads events, shows them, and says how old they are.

import { openDetail, showDetail, startActions } from "./actions.js";
import { enter, leave, openSession, readEvents, Refused } from "./connection.js";
import { setText, showOverview, startOverview } from "./overview.js";
import { showReplicas, startReplicas } from "./replicas.js";
import { duration } from "./words.js";

const AGAIN_MS = 1000, AGAIN_MS_MAX = 10000, OLD_MS = 4000;
const $ = (id) => document.getElementById(id);
let shownAt = 0, goneSince = 0, latest = null, why = "";

function show(status) {
  latest = status;
  shownAt = performance.now();
  goneSince = 0;
  $("entry").hidden = true;
  $("picture").hidden = false;
  showOverview(status);
  showReplicas(status);
  showDetail(status);
  showAge();
}

/** Say whether the picture is live, how old it is and what happens next. Runs once a second. */
function showAge() {
  if (!latest) return;
  const age = performance.now() - shownAt, isOld = goneSince > 0 || age > OLD_MS;
  const outcome = latest.outcome, live = $("live"), banner = $("banner");
  document.body.classList.toggle("is-old", isOld && !outcome);
  live.className = outcome ? "" : isOld ? "off" : "on";
  setText(live, outcome ? "ended" : isOld ? `${duration(Math.floor(age / 1000))} old` : "live");
  banner.hidden = !isOld && !outcome;
  banner.classList.toggle("ended", Boolean(outcome));
  if (banner.hidden) return setText($("said"), "");
  // The age stands apart: a screen reader says what happened once, and not each second.
  setText($("age"), isOld ? `This is the last picture, ${duration(Math.floor(age / 1000))} old.` : "");
  setText($("said"), outcome
    ? `The job has ended with exit code ${outcome.exit_code}: ${outcome.reason}`
    : `${why || "The lighthouse does not answer."} Training needs none while nothing changes. This page keeps asking.`);
}

async function watch() {
  for (let again = AGAIN_MS; ; ) {
    const began = performance.now();
    try {
      await readEvents(show);
      again = AGAIN_MS;
      // A stream ends by itself after some time: the next one follows at once.
      if (performance.now() - began > AGAIN_MS) continue;
    } catch (error) {
      if (error instanceof Refused && error.status === 401) { leave(); return ask("The session has ended, or this is another job."); }
      why = error instanceof Refused ? `The lighthouse refuses: ${error.message}.` : "";
      if (shownAt > began) again = AGAIN_MS;
      // A stream that broke after it had shown something is asked for again before it is called lost.
      else if (latest && !goneSince) goneSince = performance.now();
      if (!latest) { $("entry").hidden = true; setText($("live"), "connecting …"); }
    }
    showAge();
    await new Promise((done) => { setTimeout(done, again); });
    again = Math.min(again * 1.5, AGAIN_MS_MAX);
  }
}

function ask(words) {
  latest = null;
  $("picture").hidden = true;
  $("entry").hidden = false;
  setText($("live"), "");
  $("live").className = "";
  setText($("refused"), words);
  $("token").focus();
}

async function start() {
  startOverview();
  startActions();
  startReplicas(openDetail);
  setInterval(showAge, 1000);
  $("sign-in").addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = $("token").value.trim();
    $("token").value = "";
    try {
      await openSession({ token });
    } catch (error) {
      return ask(error instanceof Refused ? `Refused: ${error.message}.` : "The lighthouse does not answer. Try again.");
    }
    setText($("refused"), "");
    watch();
  });
  try {
    if (await enter()) watch(); else ask("");
  } catch (error) {
    ask(error instanceof Refused ? `Refused: ${error.message}.` : "The lighthouse does not answer. Reload to try again.");
  }
}

start();
