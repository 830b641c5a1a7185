/* Keeps the table of recent tasks fresh; without JavaScript the page reloads itself instead. */
"use strict";

const INTERVAL = 1500; // milliseconds

async function refresh() {
  const tasks = document.getElementById("tasks");
  // A button that somebody is about to press must not be replaced under the finger.
  if (!document.hidden && !tasks.contains(document.activeElement)) {
    try {
      const response = await fetch(tasks.dataset.source);
      if (response.ok) {
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        tasks.replaceChildren(...page.getElementById("tasks").childNodes);
      }
    } catch {
      // The server is away; the next round asks again.
    }
  }
  setTimeout(refresh, INTERVAL);
}

setTimeout(refresh, INTERVAL);
