// What pages do by themselves: come up to date without losing what the reader has opened, typed or chosen; copy
// commands; choose a range of spans by dragging; search with the key "/"; say times in the reader's zone.
"use strict";
(() => {
  const KEPT = new Set(["open", "value", "checked", "selected"]);

  // Makes `here` look like `there`, element by element, so that what did not change stays as it is.
  function morph(here, there) {
    const byId = new Map([...here.children].filter((e) => e.id).map((e) => [e.id, e]));
    let at = here.firstChild;
    for (const node of [...there.childNodes]) {
      const known = node.nodeType === 1 && node.id ? byId.get(node.id) : null;
      if (known && known !== at) here.insertBefore(known, at);
      const mine = known || (fits(at, node) ? at : null);
      if (!mine) { here.insertBefore(node, at); continue; }
      at = mine.nextSibling;
      if (node.nodeType === 1) { if (!mine.isEqualNode(node)) { attributes(mine, node); morph(mine, node); } }
      else if (mine.data !== node.data) mine.data = node.data;
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }
  const fits = (a, b) => a && a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.nodeType !== 1 || (a.id || "") === (b.id || ""));
  function attributes(mine, other) {
    for (const { name } of [...mine.attributes]) if (!other.hasAttribute(name) && !KEPT.has(name)) mine.removeAttribute(name);
    for (const { name, value } of [...other.attributes]) if (!KEPT.has(name) && mine.getAttribute(name) !== value) mine.setAttribute(name, value);
  }

  function follow() {
    const live = document.getElementById("live");
    if (!live || !window.EventSource) return;
    const offline = document.getElementById("offline");
    const page = encodeURIComponent(location.pathname + location.search);
    const source = new EventSource("/live?page=" + page);
    source.addEventListener("fragment", (event) => {
      offline.hidden = true;
      const log = document.getElementById("log");
      const atEnd = log && log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      const parsed = new DOMParser().parseFromString("<div>" + JSON.parse(event.data) + "</div>", "text/html");
      morph(live, parsed.body.firstChild);
      mark();
      const after = document.getElementById("log");
      if (after && atEnd) after.scrollTop = after.scrollHeight;
      times(live);
    });
    source.addEventListener("open", () => { offline.hidden = true; });
    source.addEventListener("over", () => { source.close(); });
    source.addEventListener("error", () => {
      offline.hidden = false;
      if (source.readyState === EventSource.CLOSED) setTimeout(follow, 3000);
    });
    window.addEventListener("pagehide", () => source.close());
    window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  }

  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  function times(within) {
    for (const time of within.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      time.title = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" }) + " (" + zone + ")";
      const text = time.classList.contains("age") ? age((at - Date.now()) / 1000) : time.textContent;
      if (time.textContent !== text) time.textContent = text;  // the same text set again would end its selection
    }
  }
  function age(ahead) {
    const seconds = Math.abs(ahead);
    const [unit, size] = seconds >= 172800 ? ["d", 86400] : seconds >= 7200 ? ["h", 3600] : seconds >= 120 ? ["min", 60] : ["s", 1];
    const text = Math.round(seconds / size) + " " + unit;
    return ahead > 0 ? "in " + text : text + " ago";
  }

  // The span under the pointer: a cell of its own, or a place in a band of very many.
  function spanAt(event) {
    const cell = event.target.closest && event.target.closest("[data-span]");
    if (cell) return Number(cell.dataset.span);
    const band = event.target.closest && event.target.closest("[data-base]");
    if (!band) return null;
    const box = band.getBoundingClientRect(), data = band.dataset;
    const column = Math.floor((event.clientX - box.left) / box.width * data.columns);
    const row = Math.floor((event.clientY - box.top) / box.height * data.rows);
    const span = Number(data.base) + column * data.across + row * data.down;
    return Math.min(Math.max(span, Number(data.least)), Number(data.most));
  }
  const LABELS = { day: (n) => new Date(n * 864e5).toISOString().slice(0, 10), hour: (n) => new Date(n * 36e5).toISOString().slice(0, 13), number: String };
  function labelOf(span) {
    const cell = document.querySelector('[data-span="' + span + '"]');
    if (cell) return decodeURIComponent(new URL(cell.closest("a").getAttribute("href"), location).pathname.split("/").pop());
    const name = LABELS[document.querySelector("[data-base]").dataset.calendar];
    return name ? name(span) : "";
  }
  let chosen = null;  // the first and last span of the range that the reader has dragged over
  function mark() {
    for (const cell of document.querySelectorAll("[data-span]")) {
      const span = Number(cell.dataset.span);
      cell.classList.toggle("chosen", chosen !== null && span >= chosen[0] && span <= chosen[1]);
    }
  }
  function choose(a, b) { chosen = a === null ? null : [Math.min(a, b), Math.max(a, b)]; mark(); }
  function dragging() {
    let from = null;
    const fill = (a, b) => {
      document.querySelector("[name=first]").value = labelOf(Math.min(a, b));
      document.querySelector("[name=last]").value = labelOf(Math.max(a, b));
    };
    document.addEventListener("pointerdown", (event) => { if (event.button === 0 && event.target.closest && event.target.closest(".drag")) from = spanAt(event); });
    document.addEventListener("dragstart", (event) => { if (event.target.closest && event.target.closest(".drag")) event.preventDefault(); });
    document.addEventListener("pointermove", (event) => {
      const to = from === null ? null : spanAt(event);
      if (to === null || to === from) return;
      choose(from, to);
      fill(from, to);
    });
    document.addEventListener("pointerup", (event) => {
      const to = from === null ? null : spanAt(event), begun = from;
      from = null;
      if (to === null || begun === null) return choose(null, null);
      if (to === begun) {
        choose(null, null);
        const label = event.target.closest("[data-base]") ? labelOf(to) : "";  // a cell of its own is a link
        const node = new URLSearchParams(location.search).get("node");
        if (label) location.href = location.pathname + "/" + encodeURIComponent(label) + (node ? "?node=" + encodeURIComponent(node) : "");
        return;
      }
      fill(begun, to);
      document.querySelector("[name=first]").closest("form").classList.add("changed");
      document.addEventListener("click", (click) => click.preventDefault(), { once: true, capture: true });
    });
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "Copied"; }
    catch { button.textContent = "Select and copy"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) { event.preventDefault(); document.getElementById("q").focus(); }
  });
  document.getElementById("zone").textContent = "Yours, on hover: " + zone;
  times(document);
  setInterval(() => times(document), 1000);
  const log = document.getElementById("log");
  if (log) log.scrollTop = log.scrollHeight;
  const reachable = () => { for (const box of document.querySelectorAll(".wide, .columns > div")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; };
  reachable();
  addEventListener("resize", reachable);
  dragging();
  follow();
})();
