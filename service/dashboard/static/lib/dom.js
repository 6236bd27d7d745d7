/* Elements, tables, and files of what is shown. Text is always set as text: a name with markup stays a name. */

/** Rows of a table that are drawn before all are asked for: a browser lays thousands out for seconds. */
const MOST_ROWS = 200;
/** Caption -> what was chosen of a table. */
const CHOSEN = new Map();
const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; null children are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** The page's main part. */
export const main = document.getElementById("main");

/** Puts what is shown in the place of "Loading", below the heading. */
export function show(...children) {
  const heading = main.querySelector(".heading");
  main.replaceChildren(heading, ...children.filter(Boolean));
}

const FOCUSABLE = "a[href], button, input, select, summary, [tabindex]";

/** Replaces what a place shows by newer data. Focus, scrolling and opened details stay where they were. */
export function refresh(place, ...children) {
  const all = (selector) => [...place.querySelectorAll(selector)];
  const focus = all(FOCUSABLE).indexOf(document.activeElement);
  const open = all("details").map((one) => one.open);
  const scrolled = all(".scroll").map((one) => [one.scrollLeft, one.scrollTop]);
  place.replaceChildren(...children);
  all("details").forEach((one, i) => { one.open = open[i] ?? false; });
  all(".scroll").forEach((one, i) => { [one.scrollLeft, one.scrollTop] = scrolled[i] ?? [0, 0]; });
  if (focus >= 0) all(FOCUSABLE)[focus]?.focus({ preventScroll: true });
}

/** Shows a fault above everything else; null takes it away. */
export function fault(error) {
  main.querySelector(".wait")?.remove();
  let place = main.querySelector(":scope > .fault");
  if (!error) { place?.remove(); return; }
  if (!place) {
    place = h("p", { class: "fault", role: "alert" });
    main.querySelector(".heading").after(place);
  }
  place.textContent = error.message ?? String(error);
  if (!error.status && error.status !== 0) throw error; // a mistake of this page
}

/** A judgement, a status or a standing as a small label. */
export const tag = (word, title) => h("span", { class: `tag ${String(word).toLowerCase()}`, title }, String(word));

/** Facts in a row: [name, value, small print]. */
export function facts(rows) {
  return h("dl", { class: "facts" }, rows.map(([name, value, small]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, small instanceof Node ? small : small ? h("small", {}, ` ${small}`) : null))));
}

/** A share of one as a bar. */
export function meter(share, label, width = 60) {
  const value = Math.min(1, Math.max(0, share || 0));
  return svg("svg", { class: "meter", width, height: 8, role: "img", "aria-label": label },
    svg("rect", { class: "ground", width, height: 8, rx: 2 }), svg("rect", { class: "value", width: value * width, height: 8, rx: 2 }));
}

/** Wins, ties and losses as one bar. */
export function split(problems, width = 90) {
  let x = 0;
  const label = `${problems.win} WIN, ${problems.tie} TIE, ${problems.loss} LOSS`;
  return svg("svg", { class: "split", width, height: 10, role: "img", "aria-label": label }, ["win", "tie", "loss"].map((name) => {
    const part = problems.all ? (problems[name] / problems.all) * width : 0;
    const made = svg("rect", { class: name, x, width: part, height: 10 });
    x += part;
    return made;
  }), svg("title", {}, label));
}

/**
 * A table. Columns: {name, title, kind: "n"|"name"|"id"|"words", cell(row), value(row), sort}. `sort`: what the
 * column is sorted by, a key for `onsort`; without `onsort` the table sorts its rows by `value`. `tools` go into
 * the bar; a CSV of all columns with a `value` is one of them.
 */
export function table({ caption, heading = caption, columns, rows, sorted, onsort, empty = "Nothing yet.", marked, tall = false, tools = [], file, bar = true }) {
  // A table that is made again, of newer data, keeps the order and the length that were chosen.
  const chosen = CHOSEN.get(caption) ?? { order: null, rows: MOST_ROWS };
  CHOSEN.set(caption, chosen);
  let order = (onsort ? null : chosen.order) ?? sorted ?? { key: null, descending: false };
  const body = h("tbody");
  const heads = columns.map((column) => {
    const key = onsort ? column.sort : column.value && column.kind !== "words" ? column.name : null;
    const cell = h("th", { scope: "col", class: column.kind === "n" ? "n" : null, title: column.title });
    if (key) cell.append(h("button", { type: "button", onclick: () => choose(key, column) }, column.name));
    else cell.append(column.name);
    return { cell, key };
  });
  function choose(key, column) {
    const again = order.key === key;
    order = { key, descending: again ? !order.descending : column.first !== "asc" && column.kind === "n" };
    if (onsort) onsort(order.key, order.descending);
    else { chosen.order = order; draw(); }
  }
  function inOrder() {
    const column = onsort ? null : columns.find((one) => one.name === order.key);
    if (!column) return rows;
    const by = (row) => column.value(row);
    const none = (value) => value === null || value === undefined || Number.isNaN(value);
    return [...rows].sort((a, b) => {
      const x = by(a), y = by(b);
      if (none(x) || none(y)) return none(x) - none(y); // rows without a value are last either way
      const sign = typeof x === "string" ? x.localeCompare(y) : x - y;
      return order.descending ? -sign : sign;
    });
  }
  function draw() {
    for (const { cell, key } of heads) {
      if (key) cell.setAttribute("aria-sort", key !== order.key ? "none" : order.descending ? "descending" : "ascending");
    }
    const ordered = inOrder();
    body.replaceChildren(...ordered.slice(0, chosen.rows).map((row) => h("tr", { class: marked?.(row) ? "marked" : null }, columns.map((column) =>
      h("td", { class: column.kind ?? null, title: column.hint?.(row) }, column.cell(row))))));
    if (ordered.length > chosen.rows) {
      const rest = h("button", { type: "button", onclick: () => { chosen.rows = Infinity; draw(); } }, `Show all ${ordered.length} rows`);
      body.append(h("tr", {}, h("td", { class: "none", colspan: columns.length }, rest)));
    }
    if (!rows.length) body.append(h("tr", {}, h("td", { class: "none", colspan: columns.length }, empty)));
  }
  draw();
  const shown = h("div", { class: tall ? "scroll tall" : "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, heads.map((one) => one.cell))), body));
  const csv = () => download(`${file ?? "gemmtune"}.csv`, new Blob([csvOf(columns, inOrder())], { type: "text/csv" }));
  const saved = h("button", { type: "button", onclick: csv, title: "What is shown, as a file" }, "CSV");
  return h("section", {}, bar ? h("div", { class: "bar" }, heading ? h("h2", {}, heading) : null, h("div", { class: "tools" }, tools, saved)) : null, shown);
}

function csvOf(columns, rows) {
  const kept = columns.filter((column) => column.value);
  const quoted = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
    const text = String(value).replace(/^([=+\-@\t\r])/, "'$1"); // spreadsheets run what begins so
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [kept.map((column) => quoted(column.csv ?? column.name)), ...rows.map((row) => kept.map((column) => quoted(column.value(row))))];
  return lines.map((line) => line.join(",")).join("\r\n") + "\r\n";
}

/** Gives the browser a file. */
export function download(name, blob) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "-") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

document.getElementById("logout")?.addEventListener("click", async () => {
  await fetch("/logout", { method: "POST" });
  location.assign("/login");
});
