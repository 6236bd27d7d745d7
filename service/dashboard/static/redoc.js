/* Redoc over this service's own document. Its search would need a worker made of text, which the page forbids. */
window.addEventListener("DOMContentLoaded", () => {
  const nonce = document.querySelector("meta[name=style-nonce]").content;
  Redoc.init("/openapi.json", { nonce, disableSearch: true, hideDownloadButton: false, expandResponses: "200" }, document.getElementById("redoc"));
});
