// How the reader has chosen to see the pages, before the first of them is drawn. Kept by the browser: no cookie.
(() => {
  "use strict";
  for (const view of ["dense", "local"]) {
    try {
      if (localStorage.getItem(`tallystick.${view}`) === "on") document.documentElement.classList.add(view);
    } catch {
      return; // a browser that keeps nothing
    }
  }
})();
