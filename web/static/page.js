// What pages do beyond HTML; everything can be read without it.

/** Put a button beside every command that copies it. */
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
// Where a table of days is wider than the screen, the latest ones matter most.
for (const table of document.querySelectorAll(".newest")) table.scrollLeft = table.scrollWidth;
document.body.addEventListener("htmx:afterSettle", (event) => addCopyButtons(event.target));
// A page that the browser had only put aside shows in its forms again what it shows below.
addEventListener("pageshow", (event) => {
  if (event.persisted) for (const form of document.querySelectorAll("form[method=get]")) form.reset();
});
