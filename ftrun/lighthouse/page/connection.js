// The way to the lighthouse: a session, the stream of events, requests of people.
//
// A link's code is in the address after "#", which no browser sends, and is taken out at once. The
// token is exchanged for a session and forgotten. The session lies in the tab's own storage, so that
// a reload does not ask again; it is sent in a header only, which no other page can do.

const STORED = "ftrun session";
const REQUEST_MS = 15000;
const SILENCE_MS = 12000;
const EVENT_CHARS_MAX = 64 * 1024 * 1024;

/** A refusal, in the lighthouse's own words. */
export class Refused extends Error {
  constructor(status, words) { super(words); this.status = status; }
}

/** True if the page has a session, or has just got one for the code in its address. */
export async function enter() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code) {
    history.replaceState(null, "", location.pathname);
    await openSession({ code });
  }
  return sessionStorage.getItem(STORED) !== null;
}

/** Get a session for {code} or {token}. */
export async function openSession({ code, token }) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers.Authorization = "Bearer " + token;
  const found = await answer("/session", { method: "POST", headers, body: JSON.stringify(code ? { code } : {}) });
  sessionStorage.setItem(STORED, found.session);
}

/** Forget the session: it has ended, or belongs to another job. */
export function leave() { sessionStorage.removeItem(STORED); }

/** Begin an operation. */
export function operate(request) {
  return answer("/operations", {
    method: "POST", headers: authorized({ "Content-Type": "application/json" }), body: JSON.stringify(request),
  });
}

/** What has become of an operation, once it changes or ten seconds have passed. */
export function operation(number) {
  return answer("/operations/" + Number(number) + "?wait=10", { headers: authorized({}) });
}

/** Read events until the stream ends; each status goes to `show`. Throws if it breaks or is refused. */
export async function readEvents(show) {
  const stop = new AbortController();
  let timer = setTimeout(() => stop.abort(), SILENCE_MS);
  try {
    const response = await fetch("/events", { headers: authorized({}), signal: stop.signal, cache: "no-store" });
    if (!response.ok) throw await refusal(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENCE_MS);
      text += value;
      if (text.length > EVENT_CHARS_MAX) throw new Error("an event is too long");
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) {
        const data = event.split("\n").find((line) => line.startsWith("data: "));
        if (data) show(JSON.parse(data.slice(6)));
      }
    }
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

function authorized(headers) {
  return { ...headers, Authorization: "Bearer " + (sessionStorage.getItem(STORED) || "") };
}

async function answer(path, options) {
  const response = await fetch(path, { ...options, cache: "no-store", signal: AbortSignal.timeout(REQUEST_MS) });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

async function refusal(response) {
  let words = "HTTP " + response.status;
  try { words = String((await response.json()).error); } catch { /* No JSON: the code says enough. */ }
  return new Refused(response.status, words);
}
