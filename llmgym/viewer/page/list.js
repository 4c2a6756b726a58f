// The list on the left: mode, filters, order. Only visible rows are in the page.

const ROW_HEIGHT = 44;
const MODES = ["episodes", "groups", "tasks"];
const filters = { mode: "episodes", text: "", deep: false, stop: "", phase: "", from: "", to: "", reward: "", tokens: false, task: null, order: "as recorded" };
const controls = {};
let items = []; // {kind, id, members}
let selected = null; // {kind, id}
let haystacks = null; // lower-case text of each episode, for the quick search
let groupSizes = null;
let found = null; // episodes whose conversation contains the search text

const ORDERS = {
  "as recorded": null,
  "best first": (item) => -item.mean,
  "worst first": (item) => item.mean,
  "largest reward range": (item) => -item.range,
  "most turns": (item) => -item.sum("turns"),
  "most tool errors": (item) => -item.sum("tool_errors"),
  "most tokens": (item) => -item.sum("sampled_tokens"),
  "slowest": (item) => -item.sum("policy_s") - item.sum("env_s"),
};

function makeItem(kind, id, members) {
  const rewards = members.map((episode) => col.reward[episode]).filter((reward) => typeof reward === "number");
  const low = rewards.reduce((a, b) => Math.min(a, b), Infinity);
  const high = rewards.reduce((a, b) => Math.max(a, b), -Infinity);
  return {
    kind, id, members, mean: rewards.length ? mean(rewards) : 0, range: rewards.length ? high - low : 0,
    sum: (name) => mean(members.map((episode) => col[name][episode])),
  };
}

function passes(episode) {
  if (filters.stop && stop(episode) !== filters.stop) return false;
  if (filters.phase && (isTraining(episode) ? "training" : "validation") !== filters.phase) return false;
  if (filters.task !== null && col.task[episode] !== filters.task) return false;
  if (filters.tokens && !col.tokens[episode]) return false;
  if (filters.from !== "" && !(value("step", episode) >= Number(filters.from))) return false;
  if (filters.to !== "" && !(value("step", episode) <= Number(filters.to))) return false;
  if (filters.reward === "success" && !(col.reward[episode] >= successReward())) return false;
  if (filters.reward === "no success" && col.reward[episode] >= successReward()) return false;
  if (!filters.text) return true;
  return found ? found.has(episode) : haystacks[episode].includes(filters.text);
}

function refresh() {
  const passing = [];
  // A group of one compares nothing; it is listed only if there are no larger groups.
  const grouped = filters.mode === "groups" && groupSizes.some((size) => size > 1);
  const alone = (episode) => grouped && groupSizes[col.group[episode]] === 1;
  for (let episode = 0; episode < count; episode++) if (passes(episode) && !alone(episode)) passing.push(episode);
  if (filters.mode === "episodes") {
    items = passing.map((episode) => makeItem("episode", episode, [episode]));
  } else {
    const key = filters.mode === "groups" ? "group" : "task";
    const byKey = new Map();
    for (const episode of passing) {
      if (!byKey.has(col[key][episode])) byKey.set(col[key][episode], []);
      byKey.get(col[key][episode]).push(episode);
    }
    items = [...byKey].map(([id, members]) => makeItem(key, id, members));
  }
  const order = ORDERS[filters.order];
  if (order) {
    const keys = new Map(items.map((item) => [item, order(item)]));
    items.sort((a, b) => keys.get(a) - keys.get(b));
  }
  const rewards = passing.map((episode) => col.reward[episode]).filter((reward) => typeof reward === "number");
  controls.count.textContent = `${plural(items.length, filters.mode.slice(0, -1))}${filters.mode === "episodes" ? "" : `, ${plural(passing.length, "episode")}`} of ${number(count)}${rewards.length ? ` · mean reward ${number(mean(rewards))}` : ""}`;
  controls.chip.replaceChildren(...(filters.task === null ? [] : [button(`task ${index.tasks[filters.task].id} ✕`, "chip", () => browse({ task: null }))]));
  byId("list").scrollTop = 0;
  if (isListed(selected)) drawRows();
  else if (items.length) select(items[0].kind, items[0].id);
  else selectNothing();
}

// Whether what is shown on the right holds an episode that passes the filters.
function isListed(shown) {
  if (!shown) return false;
  const column = { group: col.group, task: col.task }[shown.kind];
  for (let episode = 0; episode < count; episode++) if ((column ? column[episode] : episode) === shown.id && passes(episode)) return true;
  return false;
}

function drawRows() {
  const list = byId("list");
  const rows = byId("rows");
  rows.style.height = items.length * ROW_HEIGHT + "px";
  const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - 8);
  const last = Math.min(items.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW_HEIGHT) + 8);
  const shown = [];
  for (let place = first; place < last; place++) {
    const row = rowView(items[place]);
    row.style.top = place * ROW_HEIGHT + "px";
    shown.push(row);
  }
  rows.replaceChildren(...shown);
}

function rowView(item) {
  const episode = item.members[0];
  const isSelected = selected && selected.kind === item.kind && selected.id === item.id;
  const where = [];
  if (item.kind !== "task" && value("step", episode) !== null) where.push(`${isTraining(episode) ? "step" : "val"} ${value("step", episode)}`);
  let left;
  let second;
  if (item.kind === "episode") {
    left = rewardBadge(col.reward[episode]);
    if (stop(episode) !== "terminated") where.push(stop(episode));
    where.push(plural(col.turns[episode], "turn"));
    if (col.tokens[episode]) where.push("tokens");
    second = [el("span", "stop-mark stop-" + stop(episode)), el("span", "where", where.join(" · ")), el("span", "answer", value("answer", episode) || "")];
  } else {
    left = badge(number(item.mean, 2), "reward");
    where.push(plural(item.members.length, "episode"));
    const marks = item.members.slice(0, 16).map((one) => el("span", "mark " + rewardBadge(col.reward[one]).classList[2]));
    second = [el("span", "where", where.join(" · ")), el("span", "marks", marks, item.members.length > 16 ? "…" : "")];
  }
  const row = el("div", "row" + (isSelected ? " selected" : ""), left, el("div", "cells", el("div", "prompt", task(episode).prompt), el("div", "second", second)));
  row.setAttribute("role", "option");
  row.setAttribute("aria-selected", String(Boolean(isSelected)));
  row.addEventListener("click", () => select(item.kind, item.id));
  return row;
}

// Shows an episode, group or task on the right.
function select(kind, id) {
  selected = { kind, id };
  drawRows();
  if (kind === "episode") showEpisode(id, false);
  else if (kind === "group") showGroup(id);
  else showTask(id);
}

function selectNothing() {
  selected = null;
  drawRows();
  nextRequest();
  show("nothing", el("p", "notice", "No episode passes these filters."));
}

function move(by) {
  const place = selected ? items.findIndex((item) => item.kind === selected.kind && item.id === selected.id) : -1;
  const next = Math.max(0, Math.min(items.length - 1, place + by));
  if (!items[next]) return;
  const list = byId("list");
  if (next * ROW_HEIGHT < list.scrollTop) list.scrollTop = next * ROW_HEIGHT;
  if ((next + 1) * ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = (next + 1) * ROW_HEIGHT - list.clientHeight;
  select(items[next].kind, items[next].id);
}

let searches = 0;

// Searches every conversation for the text, a few at a time, so that the page stays responsive.
async function searchDeep() {
  const mine = ++searches;
  found = null;
  if (filters.deep && filters.text) {
    const hits = new Set();
    const chunks = [...starts.keys()];
    for (const [place, chunk] of chunks.entries()) {
      const bodies = await loadChunk(chunk);
      if (mine !== searches) return;
      (bodies || []).forEach((body, at) => {
        if (wordsOf(body).toLowerCase().includes(filters.text)) hits.add(starts.get(chunk) + at);
      });
      if (place % 8 === 0) controls.count.textContent = `searching: ${number(place + 1)} of ${number(chunks.length)} parts`;
    }
    for (let episode = 0; episode < count; episode++) if (haystacks[episode].includes(filters.text)) hits.add(episode);
    found = hits;
  }
  refresh();
}

function choice(name, options, label) {
  const element = el("select", "", options.map((option) => {
    const shown = el("option", "", option || label);
    shown.value = option;
    return shown;
  }));
  element.id = "filter-" + name;
  element.setAttribute("aria-label", label);
  element.addEventListener("change", () => browse({ [name]: element.value }));
  controls[name] = element;
  return element;
}

function field(name, type, label, classes) {
  const element = el("input", classes);
  element.id = "filter-" + name;
  element.type = type;
  element.setAttribute("aria-label", label);
  if (type === "checkbox") {
    element.addEventListener("change", () => browse({ [name]: element.checked }));
  } else {
    element.placeholder = label;
    let waiting = 0;
    element.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => browse({ [name]: element.value }), 150);
    });
  }
  controls[name] = element;
  return element;
}

function buildList() {
  haystacks = col.task.map((place, episode) => {
    const one = index.tasks[place];
    return `${one.id}\n${one.prompt}\n${value("answer", episode) || ""}`.toLowerCase();
  });
  groupSizes = [];
  for (const group of col.group) groupSizes[group] = (groupSizes[group] || 0) + 1;
  controls.count = el("div", "count");
  controls.chip = el("span", "");
  controls.mode = el("div", "modes", MODES.map((mode) => button(mode, "", () => browse({ mode }))));
  const usedStops = index.stops.filter((name, place) => col.stop.includes(place));
  byId("filters").append(
    controls.mode,
    el("div", "line", field("text", "search", "search task, prompt, answer", "wide"),
      el("label", "check", field("deep", "checkbox", "search in conversations"), "in conversations")),
    el("div", "line",
      choice("stop", ["", ...usedStops], "any stop reason"), choice("reward", ["", "success", "no success"], "any reward"),
      col.step ? choice("phase", ["", "training", "validation"], "any phase") : null,
      choice("order", Object.keys(ORDERS), "order"),
      col.step ? [field("from", "number", "from step", "narrow"), field("to", "number", "to step", "narrow")] : null,
      col.tokens.includes(1) ? el("label", "check", field("tokens", "checkbox", "with token view"), "with token view") : null, controls.chip),
    controls.count,
  );
  let drawing = 0;
  byId("list").addEventListener("scroll", () => {
    cancelAnimationFrame(drawing);
    drawing = requestAnimationFrame(drawRows);
  });
  addEventListener("resize", drawRows);
  byId("list").addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    move(by);
  });
}
