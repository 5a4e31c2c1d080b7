/* What htmx does not do by itself: who may do what, the CSRF token, sessions that end, logs that are followed. */
(() => {
  "use strict";

  const RIGHTS_KEPT_MS = 60_000;
  const notice = () => document.getElementById("notice");

  function tell(text, tone = "", link = "", linkText = "") {
    const place = notice();
    if (!place || place.dataset.text === text) return;
    place.dataset.text = text;
    place.className = `notice ${tone}`;
    place.textContent = text;
    if (link) {
      const anchor = document.createElement("a");
      anchor.href = link;
      anchor.textContent = linkText;
      place.append(" ", anchor);
    }
  }

  /* --- rights: what somebody may not do is not offered; the gateway decides all the same --- */

  async function rights() {
    try {
      const kept = JSON.parse(sessionStorage.getItem("rights") || "null");
      // Of this session: whoever signs in next in this tab may other things.
      if (kept && kept.csrf === csrf() && Date.now() - kept.at < RIGHTS_KEPT_MS) return kept.who;
    } catch { /* asked anew below */ }
    const answer = await fetch("/auth/whoami", { headers: { accept: "application/json" } });
    if (!answer.ok) return { name: "", operations: {} };
    const who = await answer.json();
    sessionStorage.setItem("rights", JSON.stringify({ at: Date.now(), csrf: csrf(), who }));
    return who;
  }

  let mine = null;

  /* Parts are asked for when htmx knows them: what has just come in is settled a moment after it is there. */
  function apply(settled) {
    if (!mine) return;
    for (const element of document.querySelectorAll("[data-needs]")) {
      const verdict = mine.operations[element.dataset.needs] || "deny";
      const allowed = verdict === "allow" || (verdict === "own" && element.dataset.owner === mine.name);
      element.hidden = !allowed;
      if (allowed && settled && element.dataset.part && !element.dataset.asked) {
        element.dataset.asked = "1";
        htmx.trigger(element, "allowed");
      }
    }
  }

  /* --- requests --- */

  function csrf() {
    const found = document.cookie.match(/(?:^|; )__Host-sluice-csrf=([^;]*)/);
    return found ? found[1] : "";
  }

  document.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.verb !== "get") event.detail.headers["x-sluice-csrf"] = csrf();
  });

  document.addEventListener("htmx:beforeRequest", (event) => {
    const element = event.detail.elt;
    if (!element.hasAttribute("data-live")) return;
    // Nobody looks, or somebody is in the middle of something that would be taken away.
    if (document.hidden || element.querySelector("details.confirm[open]")) event.preventDefault();
  });

  async function ended(status) {
    if (status === 401 || status === 403) {
      const answer = await fetch("/auth/whoami").catch(() => null);
      if (answer && answer.status === 401) {
        sessionStorage.removeItem("rights");
        const back = encodeURIComponent(location.pathname + location.search);
        tell("Your session has ended.", "bad", `/auth/login?return_to=${back}`, "Sign in again");
        return;
      }
    }
    if (status === 403) tell("You may not do this.", "bad");
    else if (status === 404) tell("This is not there any more.", "bad");
    else if (status === 409) tell("This is over already.");
    else if (status === 429) tell("Too many requests; trying again.", "");
    else tell("The cluster does not answer at the moment; trying again.", "");
  }

  document.addEventListener("htmx:responseError", (event) => ended(event.detail.xhr.status));
  for (const name of ["htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(name, () => tell("The gateway cannot be reached at the moment; trying again.", ""));
  }

  document.addEventListener("htmx:afterRequest", (event) => {
    const { successful, elt, requestConfig } = event.detail;
    if (!successful) return;
    if (requestConfig.verb === "get") {
      if (notice() && notice().dataset.text && notice().textContent.includes("trying again")) clear();
      return;
    }
    if (elt.dataset.done) tell(elt.dataset.done, "ok");
    for (const open of document.querySelectorAll("details.confirm[open]")) open.open = false;
    for (const live of document.querySelectorAll("[data-live]")) htmx.trigger(live, "refresh");
  });

  function clear() {
    notice().className = "notice";
    notice().textContent = "";
    delete notice().dataset.text;
  }

  document.addEventListener("htmx:afterSwap", () => { apply(false); select(); });
  document.addEventListener("htmx:afterSettle", () => apply(true));

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const open of document.querySelectorAll("details.confirm[open]")) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  });

  /* --- logs: read on from where the last piece ended --- */

  const FOLLOW_MS = 1500;
  const MOST_CHARACTERS = 2_000_000;

  async function follow(place) {
    let offset = Number(place.dataset.next);
    const url = place.dataset.follow;
    while (place.isConnected) {
      if (!document.hidden) {
        const answer = await fetch(`${url}&offset=${offset}`).catch(() => null);
        if (!place.isConnected) return;
        if (answer && answer.ok) {
          const piece = await answer.json();
          if (piece.data) append(place, piece.data);
          offset = piece.next_offset;
          if (!piece.end) continue;
        } else if (answer) {
          await ended(answer.status);
          if (answer.status < 500 && answer.status !== 429) return;
        }
      }
      await new Promise((resolve) => setTimeout(resolve, FOLLOW_MS));
    }
  }

  function append(place, text) {
    const atEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 40;
    place.append(text);
    while (place.textContent.length > MOST_CHARACTERS && place.firstChild !== place.lastChild) place.firstChild.remove();
    if (atEnd) place.scrollTop = place.scrollHeight;
  }

  /* --- the trust map: what was chosen stays chosen while the picture moves --- */

  function select() {
    for (const link of document.querySelectorAll(".map a")) {
      if (location.hash && link.getAttribute("href") === location.hash) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  window.addEventListener("hashchange", () => {
    select();
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.classList.contains("detail")) target.focus();
  });

  document.addEventListener("DOMContentLoaded", async () => {
    document.documentElement.dataset.script = "on";
    select();
    for (const place of document.querySelectorAll("[data-follow]")) {
      place.scrollTop = place.scrollHeight;
      follow(place);
    }
    mine = await rights().catch(() => null);
    apply(true);
  });
})();
