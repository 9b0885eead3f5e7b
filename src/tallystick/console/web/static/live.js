// Keeps an open page calm while it follows the stream: what the reader points at, has focused or selected stays
// where it is, and the header says whether the page is live. Without this file a page works, and moves.
(() => {
  "use strict";
  const RETRY_MS = 2000;
  const page = () => document.getElementById("page");
  const live = document.getElementById("live");

  // What is said in the header ---------------------------------------------------------------------------------
  function say(state, text) {
    if (!live || live.dataset.state === state) return;
    live.dataset.state = state;
    live.textContent = text;
  }
  let isConnected = false;
  // The console may answer while what it reads does not.
  const sayFollowed = () => ("stale" in page().dataset ? say("stale", "not up to date") : say("live", "live"));
  const sayLive = () => isConnected && sayFollowed();
  const sayAway = () => say("away", `not connected since ${new Date().toISOString().slice(11, 19)}`);
  document.addEventListener("htmx:sse:after:connection", () => {
    isConnected = true;
    sayLive();
  });
  for (const name of ["htmx:sse:before:connection", "htmx:sse:error", "htmx:sse:close"]) {
    document.addEventListener(name, (event) => {
      isConnected = false;
      // Before the first connection the page is as new as its own answer.
      if (name !== "htmx:sse:before:connection" || event.detail.connection.attempt > 0) sayAway();
    });
  }
  for (const name of ["htmx:error", "htmx:response:error"]) {
    document.addEventListener(name, (event) => {
      sayAway();
      // A stream that was open once is taken up again by its extension; the first attempt is not.
      if (event.target.id === "stream" && !isConnected) setTimeout(openStream, RETRY_MS, event.target);
    });
  }
  const openStream = (stream) => window.htmx.ajax("GET", stream.getAttribute("hx-sse:connect"), { source: stream });
  document.addEventListener("htmx:after:swap", (event) => event.detail.ctx.response.status < 400 && sayLive());

  // What stays where it is -------------------------------------------------------------------------------------
  // The elements with an id that the reader points at, has focused, or has selected text of; the first one is kept
  // in its place on the screen.
  const findHovered = () => [...document.querySelectorAll("#page [id]:hover")].pop();
  function findAnchors() {
    const selection = document.getSelection();
    const selected = selection && !selection.isCollapsed ? selection.anchorNode.parentElement : null;
    const nodes = [findHovered(), document.activeElement, selected];
    return nodes.map((node) => node?.closest("#page [id]")).filter(Boolean);
  }

  // New rows come last, and rows that are gone stay, in a table that the reader is at.
  function keepOrder(body, news) {
    if ([...body.children, ...news.children].some((row) => !row.id)) return;
    const rows = [...body.children];
    const arrived = new Map([...news.children].map((row) => [row.id, row]));
    const kept = rows.map((row) => {
      const same = arrived.get(row.id);
      arrived.delete(row.id);
      if (same) return same;
      const gone = row.cloneNode(true);
      gone.classList.add("gone");
      return gone;
    });
    news.replaceChildren(...kept, ...arrived.values());
  }
  // Rows whose place is their time would come on top and push out the last: such a table waits as it is.
  const waits = (body) => body.parentElement.matches("[data-hold]");
  const keepRows = (body, news) => news.replaceChildren(...[...body.children].map((row) => row.cloneNode(true)));

  let anchor = null;
  let held = null;
  document.addEventListener("htmx:before:swap", (event) => {
    const task = event.detail.tasks.find((each) => each.type === "main");
    if (!task || task.target !== page()) return;
    const anchors = findAnchors();
    anchor = anchors.length ? { id: anchors[0].id, top: anchors[0].getBoundingClientRect().top } : null;
    for (const body of new Set(anchors.map((node) => node.closest("tbody")).filter(Boolean))) {
      const news = task.fragment.querySelector(`#${CSS.escape(body.parentElement.id || "-")} > tbody`);
      if (news && !waits(body)) keepOrder(body, news);
      else if (news && body.matches(":hover")) keepRows(body, news);
    }
    held = findHovered()?.closest(".table") ?? null;
  });

  // Room above and below the page, where scrolling alone cannot keep the anchor in its place. A swap takes the
  // room above away, as the server's page has none.
  let below = 0;
  function makeRoom(above, more) {
    below = more;
    page().style.marginTop = above ? `${above}px` : "";
    document.body.style.paddingBottom = below ? `${below}px` : "";
  }
  document.addEventListener("htmx:after:swap", () => {
    const node = anchor && document.getElementById(anchor.id);
    if (!node) return makeRoom(0, 0);
    const scrollBack = () => {
      scrollBy({ top: node.getBoundingClientRect().top - anchor.top, behavior: "instant" });
      return node.getBoundingClientRect().top - anchor.top;
    };
    const rest = scrollBack();
    if (Math.abs(rest) < 0.5) return;
    makeRoom(Math.max(0, -rest), below + Math.max(0, rest));
    scrollBack();
  });
  // The reader has gone elsewhere: rows take their order, and those that are gone go.
  document.addEventListener("mouseover", (event) => {
    if (!held || held.contains(event.target)) return;
    held = null;
    window.htmx.trigger("#stream", "snapshot");
  });

  // What was opened stays open: the server does not know of it.
  window.htmx.registerExtension("calm", { htmx_before_morph_attr: (_, change) => change.attrName !== "open" });

  // How the reader sees it -------------------------------------------------------------------------------------
  // The server's times are UTC. The reader's own is in a tooltip, and beside each where that is chosen.
  const form = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  function addLocalTimes() {
    for (const time of document.querySelectorAll("#page time")) {
      const text = form.format(new Date(time.dateTime));
      time.title = `${text} (${zone})`;
      time.dataset.local = text;
    }
  }
  addLocalTimes();
  document.addEventListener("htmx:after:swap", addLocalTimes);
  const root = document.documentElement;
  for (const button of document.querySelectorAll("button[data-view]")) {
    const { view } = button.dataset;
    button.setAttribute("aria-pressed", root.classList.contains(view));
    button.addEventListener("click", () => {
      const isOn = root.classList.toggle(view);
      button.setAttribute("aria-pressed", isOn);
      try {
        localStorage.setItem(`tallystick.${view}`, isOn ? "on" : "off");
      } catch {
        // It lasts as long as the page.
      }
    });
  }
  document.addEventListener("keydown", (event) => {
    const isWriting = event.target.closest?.("input, select, textarea, [contenteditable]");
    if (event.key !== "/" || isWriting || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault(); // or the sign would be written
    const input = document.querySelector("#search input");
    input?.focus();
    input?.select();
  });

  // Copying a command ------------------------------------------------------------------------------------------
  document.documentElement.classList.add("scripted");
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button.copy");
    if (!button) return;
    const text = button.parentElement.querySelector("code").textContent;
    let word = "Copied";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      document.getSelection().selectAllChildren(button.parentElement.querySelector("code"));
      word = "Selected";
    }
    button.dataset.said = word;
    setTimeout(() => delete button.dataset.said, 1500);
  });
})();
