/* All tunings, newest first. */

import { age, get, repeat } from "./lib/api.js";
import { fault, h, meter, refresh, show, table, tag } from "./lib/dom.js";
import * as filters from "./lib/filters.js";
import * as f from "./lib/format.js";

const place = h("div"), form = h("form", { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() });
show(form, place);
let pages = 1;

async function round() {
  const { status } = filters.given();
  let rows = [], cursor = null;
  for (let page = 0; page < pages; page++) {
    const found = await get("/v1/tunings", { status, limit: 50, cursor });
    rows = rows.concat(found.items);
    cursor = found.next_cursor;
    if (!cursor) break;
  }
  if (!form.childElementCount) {
    const states = ["queued", "running", "succeeded", "failed", "cancelled"].map((one) => [one, one]);
    form.append(filters.choice("status", "Status", [["", "any"], ...states], status, (name, value) => { filters.write({ ...filters.given(), [name]: value }); pages = 1; round().catch(fault); }));
  }
  refresh(place, table({
    caption: "Tunings", rows, file: "tunings", empty: "No such tuning. POST /v1/tunings, or `gemmtune tune --server`, starts one.",
    tools: cursor ? [h("button", { type: "button", onclick: () => { pages += 1; round().catch(fault); } }, "Show more")] : [],
    columns: [
      { name: "Tuning", kind: "name", cell: (r) => h("a", { href: `/tunings/${encodeURIComponent(r.id)}` }, r.id), value: (r) => r.id },
      { name: "Status", cell: (r) => tag(r.status), value: (r) => r.status },
      { name: "Device class", kind: "name", cell: (r) => r.device_class, value: (r) => r.device_class },
      { name: "Problems", kind: "n", cell: (r) => [`${f.count(r.succeeded + r.failed)} of ${f.count(r.total)}`, meter((r.succeeded + r.failed) / r.total, "Share that has ended")], value: (r) => r.total },
      { name: "Without verdict", kind: "n", cell: (r) => (r.failed ? h("span", { class: "bad" }, f.count(r.failed)) : "0"), value: (r) => r.failed },
      { name: "Seconds a problem", kind: "n", cell: (r) => (r.request.campaign ? `${f.digits(r.request.campaign.seconds)} for all` : f.digits(r.request.budget?.seconds)), value: (r) => r.request.budget?.seconds ?? r.request.campaign?.seconds },
      { name: "Strategy", cell: (r) => r.request.search?.strategy ?? "–", value: (r) => r.request.search?.strategy },
      { name: "Submitted", kind: "n", cell: (r) => f.when(r.created_at), value: (r) => r.created_at },
      { name: "Took", kind: "n", cell: (r) => f.duration(r.ended_at ? (Date.parse(r.ended_at) - Date.parse(r.created_at)) / 1000 : age(r.created_at)), value: (r) => (r.ended_at ? (Date.parse(r.ended_at) - Date.parse(r.created_at)) / 1000 : null) },
    ],
  }));
  fault(null);
}

filters.onback(() => { form.replaceChildren(); round().catch(fault); });
repeat(10, round, fault);
