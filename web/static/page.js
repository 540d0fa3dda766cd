// Enhancements of all pages; pages are readable without scripts.

/** Add a copy button to every command. */
function addCopyButtons(root) {
  for (const box of root.querySelectorAll("pre.command:not([data-copies])")) {
    box.dataset.copies = "";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(box.querySelector("code").textContent.trim());
        button.textContent = "Copied";
      } catch {
        button.textContent = "Select it and copy";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    box.append(button);
  }
}

/** Suggest the values of the chosen axis in the fields that a list of axes names. */
function addAxisValues(root) {
  for (const axis of root.querySelectorAll("select[data-suggests]")) {
    axis.addEventListener("change", () => {
      for (const name of axis.dataset.suggests.split(" ")) axis.form.elements[name].setAttribute("list", `values-${axis.value}`);
    });
  }
}

const GRID_STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Make the cells of each matrix one tab stop; arrow keys, Home and End move inside. */
function addArrowKeys(root) {
  for (const table of root.querySelectorAll("table.matrix:not([data-keys])")) {
    table.dataset.keys = "";
    const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
    const grid = rows.map((row) => [...row.cells].map((cell) => cell.querySelector("a")));
    const links = grid.flat().filter(Boolean);
    const select = (link) => {
      for (const one of links) one.tabIndex = one === link ? 0 : -1;
    };
    if (links.length) select(links[0]);
    table.addEventListener("focusin", (event) => {
      if (links.includes(event.target)) select(event.target);
    });
    table.addEventListener("keydown", (event) => {
      const row = grid.findIndex((cells) => cells.includes(event.target));
      const target = row < 0 || event.ctrlKey || event.altKey || event.metaKey ? null
        : findLink(grid, row, grid[row].indexOf(event.target), event.key);
      if (!target) return;
      event.preventDefault();
      target.focus();
    });
  }
}

/** Find the next link of a grid in the direction of a key; cells without a link are skipped. */
function findLink(grid, row, column, key) {
  if (key === "Home") return grid[row].find(Boolean);
  if (key === "End") return grid[row].findLast(Boolean);
  const [down, right] = GRID_STEPS[key] ?? [0, 0];
  if (!down && !right) return null;
  do {
    row += down;
    column += right;
  } while (grid[row] && column >= 0 && column < grid[row].length && !grid[row][column]);
  return grid[row]?.[column];
}

const UTC_TIME = /\b(\d{4}-\d\d-\d\d) (\d\d:\d\d) UTC\b/;

/** Say the local time beside each time in UTC: in running text in brackets, in tables as a tooltip. */
function addLocalTimes(root) {
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (texts.nextNode()) {
    const parent = texts.currentNode.parentElement;
    if (UTC_TIME.test(texts.currentNode.data) && !parent.closest("time, pre, script, style, title")) nodes.push(texts.currentNode);
  }
  for (let node of nodes) {
    for (let match; (match = UTC_TIME.exec(node.data));) {
      const time = document.createElement("time");
      const moment = new Date(`${match[1]}T${match[2]}Z`);
      const local = moment.toLocaleString("sv", { dateStyle: "short", timeStyle: "short" });
      time.dateTime = moment.toISOString();
      const rest = node.splitText(match.index).splitText(match[0].length);
      time.append(match[0]);
      if (moment.getTimezoneOffset()) {
        time.title = `${local} in your time zone`;
        if (!node.parentElement.closest("table")) time.append(` (${local.replace(`${match[1]} `, "")} local)`);
      }
      rest.previousSibling.replaceWith(time);
      node = rest;
    }
  }
}

/** Enhance the page, or a part that was replaced. */
function enhance(root) {
  addCopyButtons(root);
  addArrowKeys(root);
  addAxisValues(root);
  addLocalTimes(root);
}

enhance(document.body);
// Signing in with a key would show the form again.
for (const note of document.querySelectorAll("[data-needs-cookies]")) note.hidden = navigator.cookieEnabled;
// Scroll tables of days to the latest ones, beside sites of any name and their states.
for (const table of document.querySelectorAll(".newest")) {
  table.style.setProperty("--site-width", `${table.querySelector("tbody th").offsetWidth}px`);
  table.scrollLeft = table.scrollWidth;
}
document.body.addEventListener("htmx:afterSettle", (event) => {
  enhance(event.target);
  // Words that were typed since the request are still in the field, but the form that would send them is gone.
  const words = event.target.id.startsWith("table-") && event.target.querySelector(".find input[type=search]");
  const address = new URL(event.detail.pathInfo.finalRequestPath, location);
  if (words && words.value !== (address.searchParams.get(words.name) ?? "")) words.form.requestSubmit();
  // Jobs and messages below a part that has ended are of before.
  if (event.target.id === "live" && !event.target.hasAttribute("hx-get")) location.reload();
});
// Keep the order and filter of the other tables, which may have changed since this one was written.
document.body.addEventListener("htmx:configRequest", ({ detail }) => {
  if (!detail.target.id.startsWith("table-")) return;
  const own = detail.target.id.slice("table-".length), address = new URL(detail.path, location);
  const isOther = (name) => /^(find|sort)-/.test(name) && name.slice("find-".length) !== own;
  for (const name of [...address.searchParams.keys(), ...Object.keys(detail.parameters)].filter(isOther)) {
    address.searchParams.delete(name);
    delete detail.parameters[name];
  }
  for (const [name, value] of new URLSearchParams(location.search)) if (isOther(name)) address.searchParams.set(name, value);
  detail.path = address.pathname + address.search;
});
/** Open a table that did not come as a page, which says why: the session has ended, or the service is busy or gone. */
function openAsPage({ detail }) {
  if (detail.target.id.startsWith("table-")) location.assign(detail.pathInfo.finalRequestPath);
  // A part that is fetched again and again waits for a service that is busy or gone.
  else if ([200, 401, 403].includes(detail.xhr.status)) location.reload();
}

for (const failure of ["htmx:responseError", "htmx:sendError"]) document.body.addEventListener(failure, openAsPage);
// A proxy that signs people in may answer with a page of its own.
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const { detail } = event;
  if (!detail.shouldSwap || detail.serverResponse.includes(`id="${detail.target.id}"`)) return;
  detail.shouldSwap = false;
  openAsPage(event);
});
// Reset forms of pages restored from the back-forward cache, so that they agree with the page.
addEventListener("pageshow", (event) => {
  if (event.persisted) for (const form of document.querySelectorAll("form[method=get]")) form.reset();
});
