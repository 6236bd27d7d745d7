/* The public HTTP interface, as any client uses it. */

/** An answer that is an error: the problem document's words. */
export class Fault extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

/** How far the service's clock is ahead of this browser's, in milliseconds; from the last answer. */
let ahead = 0;

/** Fetches an address with query parameters; those without a value are left out. */
export async function get(path, query = {}, options = {}) {
  const answer = await ask(path, query, options);
  return answer.json();
}

/** The text of an answer. */
export async function getText(path) {
  return (await ask(path, {}, {})).text();
}

/** Deletes; null for an answer without a body. */
export async function remove(path) {
  const answer = await ask(path, {}, { method: "DELETE" });
  return answer.status === 204 ? null : answer.json().catch(() => null);
}

async function ask(path, query, options) {
  const url = address(path, query);
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Fault(0, "The service does not answer.");
  }
  const at = Date.parse(answer.headers.get("Date") ?? "");
  if (!Number.isNaN(at)) ahead = at - Date.now();
  if (answer.status === 401) {
    location.replace(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    return new Promise(() => {}); // the page is left
  }
  if (!answer.ok) {
    const fault = await answer.json().catch(() => null);
    throw new Fault(answer.status, fault?.detail ?? `The service answered ${answer.status}.`);
  }
  return answer;
}

/** Rows that the service gives at a time, at most. */
const MOST_ROWS = Number(document.getElementById("main").dataset.rows);

/** An address with its query; parameters that are null, undefined or "" are left out, those of a list repeated, and
    a limit is what the service allows. */
export function address(path, query = {}) {
  const each = Object.entries(query).flatMap(([name, value]) => (Array.isArray(value) ? value.map((one) => [name, one]) : [[name, name === "limit" ? Math.min(value, MOST_ROWS) : value]]));
  const given = each.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given).toString();
  return text ? `${path}?${text}` : path;
}

/** The items of a list, page after page, at most `most`; `more`: whether there are others. */
export async function pages(path, query, most = 5000, options = {}) {
  let cursor = null, items = [], first = null;
  do {
    const page = await get(path, { ...query, cursor, limit: Math.min(1000, most - items.length) }, options);
    first ??= page;
    items = items.concat(page.items);
    cursor = page.next_cursor;
  } while (cursor && items.length < most);
  return { ...first, items, more: cursor !== null };
}

/** Seconds since a time of the service, by its own clock. */
export function age(text) {
  return Math.max(0, (Date.now() + ahead - Date.parse(text)) / 1000);
}

/** Seconds that a tuning still takes, by what has ended; null before its first problem has. */
export function left(tuning) {
  const done = tuning.succeeded + tuning.failed;
  if (tuning.ended_at || !done) return null;
  return (age(tuning.created_at) / done) * (tuning.total - done);
}

/** Values of Prometheus's text: name -> [{labels, value}]. */
export async function metrics() {
  const found = {};
  for (const line of (await getText("/metrics")).split("\n")) {
    const match = /^(gemmtune_\w+?)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(["\\n])/g, (_, c) => (c === "n" ? "\n" : c));
    }
    (found[match[1]] ??= []).push({ labels, value: Number(match[3]) });
  }
  return found;
}

/** Calls again every few seconds while the page is seen; a fault is given to `failed` and tried again. */
export function repeat(seconds, call, failed) {
  let timer = null, running = false;
  async function round() {
    if (running) return;
    running = true;
    clearTimeout(timer);
    try { await call(); } catch (error) { if (error.name !== "AbortError") failed(error); }
    running = false;
    timer = setTimeout(() => { if (!document.hidden) round(); }, seconds * 1000);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) round(); });
  return round();
}
