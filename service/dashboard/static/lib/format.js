/* Numbers and names as people read them. Anything that is no finite number is a dash. */

const finite = (value) => typeof value === "number" && Number.isFinite(value);
const NONE = "–";

/** Digits of a value in a column: three that count. */
export function digits(value) {
  if (!finite(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

/** Seconds of one call or of many. */
export function time(value) {
  if (!finite(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0";
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (size >= scale) return `${digits(value / scale)} ${unit}`;
  }
  return `${digits(value / 1e-9)} ns`;
}

/** A duration as people wait for it. */
export function duration(value) {
  if (!finite(value)) return NONE;
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${Math.round(value / 86400)} d`;
}

/** A ratio: 1.18x. */
export const ratio = (value) => (finite(value) ? `${value >= 100 ? value.toFixed(0) : value.toFixed(value >= 10 ? 1 : 2)}×` : NONE);
/** A share of one. */
export const percent = (value, places = 0) => (finite(value) ? `${(value * 100).toFixed(places)}%` : NONE);
/** A whole number with separators. */
export const count = (value) => (finite(value) ? value.toLocaleString("en-US") : NONE);

/** A value with an SI prefix: 3.2 T. */
export function si(value, unit = "") {
  if (!finite(value)) return NONE;
  for (const [prefix, scale] of [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(value) >= scale) return `${digits(value / scale)} ${prefix}${unit}`;
  }
  return `${digits(value)} ${unit}`.trim();
}

/** Bytes in powers of two. */
export function bytes(value) {
  if (!finite(value)) return NONE;
  for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= scale) return `${digits(value / scale)} ${unit}`;
  }
  return `${value} B`;
}

/** An interval's ends; an open end is a dash. */
export const between = (low, high, shown = ratio) => (low == null && high == null ? "" : `${shown(low)} to ${shown(high)}`);

/** A time of the service: its date and minute, in UTC. */
export const when = (text) => (text ? `${text.slice(0, 10)} ${text.slice(11, 16)}` : NONE);

/** A problem in one line: 16 x 4096 x 4096 bf16 NT + what is unusual. */
export function problem(p) {
  if (!p) return NONE;
  const parts = [`${p.m}×${p.n}×${p.k}`];
  if (p.batch > 1) parts.push(`batch ${p.batch}`);
  parts.push(p.dtype ?? p.dtype_a ?? "fp32");
  parts.push((p.trans_a ? "T" : "N") + (p.trans_b ? "T" : "N"));
  if (p.groups) parts.push(`${p.groups} groups ${typeof p.routing === "string" ? p.routing : "of given rows"}`);
  for (const name of ["dtype_b", "dtype_c", "dtype_d", "compute", "epilogue", "scaling"]) {
    const value = p[name];
    if (value == null || value === "none") continue;
    if (typeof value === "object") {
      parts.push(Object.values(value).filter((one) => one !== null && one !== "none").join("+"));
    } else parts.push(name.startsWith("dtype") ? `${name.slice(-1)}:${value}` : String(value));
  }
  if (p.prepacked) parts.push("prepacked");
  if (p.beta != null && p.beta !== 0) parts.push("beta");
  if (["lda", "ldb", "ldc", "ldd"].some((name) => p[name] != null)) parts.push("padded");
  return parts.join(" ");
}

/** A device class without its vendor, where that is plain. */
export const device = (id) => id.split(":").slice(1).join(" · ") || id;
/** The hash at the end of an id. */
export const short = (id) => (id ? id.slice(id.lastIndexOf("-") + 1) : NONE);
