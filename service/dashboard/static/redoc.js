/* Redoc over this service's own document. Its search would need a worker made of text, which the page forbids.
   It shows its maker's logo from another host, which is never asked: images take addresses of this host alone. */
const own = (address) => new URL(address, location.href).origin === location.origin || address.startsWith("data:");
const { setAttribute } = Element.prototype;
Element.prototype.setAttribute = function (name, value) {
  if (name !== "src" || own(String(value))) setAttribute.call(this, name, value);
};
const source = Object.getOwnPropertyDescriptor(HTMLImageElement.prototype, "src");
Object.defineProperty(HTMLImageElement.prototype, "src", {
  ...source,
  set(value) { if (own(String(value))) source.set.call(this, value); },
});
window.addEventListener("DOMContentLoaded", () => {
  Redoc.init("/openapi.json", { disableSearch: true, expandResponses: "200" }, document.getElementById("redoc"));
});
