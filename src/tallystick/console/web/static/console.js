/* While the mouse is over a table whose rows move, the page waits with its update: no row moves under it. */
(() => {
  const HOLD = "[data-hold]:hover";
  let held = null;
  for (const name of ["snapshot", "resync"]) {
    document.addEventListener(name, (event) => {
      if (event.target.id !== "stream" || event.detail?.released || !document.querySelector(HOLD)) return;
      event.stopImmediatePropagation();
      held = name;
    }, true);
  }
  document.addEventListener("mouseout", () => {
    if (held === null || document.querySelector(HOLD)) return;
    const stream = document.getElementById("stream");
    stream?.dispatchEvent(new CustomEvent(held, { bubbles: true, detail: { released: true } }));
    held = null;
  });
})();
