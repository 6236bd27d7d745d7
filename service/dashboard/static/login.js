/* Exchanges a key for the cookie, and goes back to the page that asked for it. */
const form = document.getElementById("login");
const said = document.getElementById("said");

/** Where to go after the login: an address of this very service, or the overview. */
function next() {
  const given = new URLSearchParams(location.search).get("next") ?? "/";
  const url = new URL(given, location.origin);
  return url.origin === location.origin && /^\/(?![/\\])/.test(given) ? url.pathname + url.search + url.hash : "/";
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  said.textContent = "";
  try {
    const answer = await fetch("/login", {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ key: form.elements.key.value.trim() }),
    });
    if (answer.ok) location.replace(next());
    else said.textContent = (await answer.json().catch(() => null))?.detail ?? `The service answered ${answer.status}.`;
  } catch {
    said.textContent = "The service does not answer.";
  }
});
