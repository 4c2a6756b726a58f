// Assembles the page.

function showTab(name) {
  for (const tab of ["overview", "browse"]) {
    byId(tab).hidden = tab !== name;
    byId("tab-" + tab).setAttribute("aria-pressed", String(tab === name));
  }
  if (name === "browse") drawRows();
}

// Shows the list with some filters changed.
function browse(changed) {
  Object.assign(filters, changed);
  filters.text = filters.text.toLowerCase();
  for (const [name, now] of Object.entries(filters)) {
    const control = controls[name];
    if (!control || name === "text") continue;
    if (name === "mode") for (const one of control.children) one.setAttribute("aria-pressed", String(one.textContent === now));
    else if (control.type === "checkbox") control.checked = now;
    else control.value = now;
  }
  showTab("browse");
  if ("text" in changed || "deep" in changed) searchDeep();
  else refresh();
}

function aboutLine() {
  const parts = [{ training: "training run", evaluation: "evaluation", episodes: "episodes" }[index.kind], plural(count, "episode")];
  const whole = [...starts.keys()].every((chunk) => byId("chunk-" + chunk));
  const views = col.tokens.filter(Boolean).length;
  if (views) parts.push(`${number(views)} token by token`);
  if (!whole) parts.push("some conversations left out to keep the file small");
  return parts.join(" · ");
}

async function main() {
  byId("tab-overview").addEventListener("click", () => showTab("overview"));
  byId("tab-browse").addEventListener("click", () => showTab("browse"));
  await loadIndex();
  byId("about").textContent = aboutLine();
  buildList();
  showOverview();
  browse({});
  showTab(col.step || index.report ? "overview" : "browse");
  document.documentElement.dataset.ready = "yes";
}

main().catch((error) => {
  byId("about").textContent = `this page cannot be shown: ${error}`;
  throw error;
});
