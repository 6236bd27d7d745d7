/* Redoc over this service's own document. Its search would need a worker made of text, which the page forbids,
   and it shows its maker's logo from another host: that address is never asked. */
const setAttribute = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
  if (name === "src" && new URL(value, location.href).origin !== location.origin && !value.startsWith("data:")) return;
  setAttribute.call(this, name, value);
};
window.addEventListener("DOMContentLoaded", () => {
  Redoc.init("/openapi.json", { disableSearch: true, hideDownloadButton: false, expandResponses: "200" }, document.getElementById("redoc"));
});
