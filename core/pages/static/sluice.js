/* What htmx does not do by itself: who may do what, the CSRF token, sessions that end, streams of events, logs. */
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
      // Without an owner it is a page or a list, of which the server shows what is one's own.
      const owned = !("owner" in element.dataset) || element.dataset.owner === mine.name;
      const allowed = verdict === "allow" || (verdict === "own" && owned);
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
    const unwanted = document.hidden || element.querySelector("details.confirm[open]");
    if (unwanted || (isPoll(event.detail) && told(element))) event.preventDefault();
    else shown.set(element.id, Date.now());
  });

  document.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.elt.dataset.json) event.detail.headers["Content-Type"] = "application/json";
  });

  /* Bodies that are a document, which the page brings: REST takes no forms. */
  htmx.defineExtension("json-body", {
    encodeParameters: (_request, _parameters, element) => element.dataset.json,
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

  /* --- a page moves when the cluster says that something has changed; where it cannot say so, the page asks --- */

  const APART_MS = 1000;
  const GROWN_OLD_MS = 15_000;
  const AGAIN_MS = 30_000;
  const EVENTS = ["job", "removed", "overview", "end"];

  const shown = new Map();
  let source = null;
  let streaming = false;
  let waiting = null;
  let moved = 0;

  const isPoll = (detail) => !detail.requestConfig.triggeringEvent;
  // While events come, a part is asked for by itself only for what changes without one: how long ago something was.
  const told = (element) =>
    streaming && element.hasAttribute("data-pushed") && Date.now() - (shown.get(element.id) || 0) < GROWN_OLD_MS;

  function move() {
    if (waiting) return;
    waiting = setTimeout(() => {
      waiting = null;
      moved = Date.now();
      for (const live of document.querySelectorAll("[data-pushed]")) htmx.trigger(live, "refresh");
    }, Math.max(0, moved + APART_MS - Date.now()));
  }

  function listen() {
    const place = document.querySelector("[data-events]");
    if (!place || !mine || document.hidden) return;
    if ((mine.operations[place.dataset.eventsNeeds] || "deny") === "deny") return;
    const opened = new EventSource(place.dataset.events);
    source = opened;
    opened.addEventListener("open", () => { streaming = true; });
    // It comes back by itself, but for a refusal: then the page asks again, and tells why it gets nothing.
    opened.addEventListener("error", () => {
      streaming = false;
      if (opened.readyState === EventSource.CLOSED && source === opened) setTimeout(() => { silence(); listen(); }, AGAIN_MS);
    });
    for (const name of EVENTS) opened.addEventListener(name, move);
    opened.addEventListener("end", silence);
  }

  function silence() {
    if (source) source.close();
    source = null;
    streaming = false;
  }

  document.addEventListener("visibilitychange", () => {
    silence();
    listen();
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
    listen();
  });
})();
