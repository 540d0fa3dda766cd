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

addCopyButtons(document);
// Scroll tables of days to the latest ones.
for (const table of document.querySelectorAll(".newest")) table.scrollLeft = table.scrollWidth;
document.body.addEventListener("htmx:afterSettle", (event) => addCopyButtons(event.target));
// Reset forms of pages restored from the back-forward cache, so that they agree with the page.
addEventListener("pageshow", (event) => {
  if (event.persisted) for (const form of document.querySelectorAll("form[method=get]")) form.reset();
});
