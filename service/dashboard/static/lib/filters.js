/* Filters that live in the page's address, so that every view is a link. */

import { get, pages } from "./api.js";
import { h } from "./dom.js";

/** The address that is shown, without its fragment. */
let shown = location.pathname + location.search;

/** The filters of the address. */
export function given() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

/** Writes filters into the address; empty ones are left out. */
export function write(values, push = true) {
  const kept = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(kept).toString();
  const url = location.pathname + (text ? `?${text}` : "");
  if (url !== location.pathname + location.search) history[push ? "pushState" : "replaceState"](null, "", url);
  shown = url;
}

/** A labelled choice; options are [value, text]. A value that is no option is kept as one. */
export function choice(name, label, options, value, onchange) {
  const known = options.some(([one]) => one === value);
  const all = known || !value ? options : [...options, [value, value]];
  return h("label", {}, label, h("select", { name, onchange: (event) => onchange(name, event.target.value) },
    all.map(([one, text]) => h("option", { value: one, selected: one === (value ?? "") }, text))));
}

/** A labelled line of text; it counts once it is left, or with Enter. */
export function entry(name, label, value, onchange, type = "text") {
  return h("label", {}, label, h("input", { name, type, value: value ?? "", onchange: (event) => onchange(name, event.target.value) }));
}

/** Device classes with results first, as options. */
export async function classes() {
  const { classes: found } = await get("/v1/devices");
  return found.sort((a, b) => (b.revision > 0) - (a.revision > 0) || b.workers - a.workers || a.id.localeCompare(b.id));
}

/** The class that the address names, or the first with results; null without any. */
export function chosen(found, name) {
  return name || found[0]?.id || null;
}

/** Imported files: `lists`, the names of those that name problems; `judged`, device class -> kernels that were judged
    on it (gemmtune judge). */
export async function files() {
  const { items } = await pages("/v1/provenance", {});
  const judged = {};
  for (const one of items.filter((file) => file.kind === "judged")) (judged[one.device_class] ??= new Set()).add(one.source.replace(/^judged:/, ""));
  return { lists: [...new Set(items.filter((one) => one.keys > 0).map((one) => one.source))].sort(), judged: Object.fromEntries(Object.entries(judged).map(([device, names]) => [device, [...names].sort()])) };
}

/** What the choices of a page are made of: device classes, lists, judged kernels. */
export async function options() {
  const [known, named] = await Promise.all([classes(), files()]);
  return { classes: known, ...named };
}

/** Calls when the address changes by the browser's buttons. A skip link changes the fragment alone: drawing the page
    again would take the focus away. */
export function onback(call) {
  window.addEventListener("popstate", () => {
    const now = location.pathname + location.search;
    if (now === shown) return;
    shown = now;
    call();
  });
}
