// Shows one episode, a group of them side by side, or a task.

const ROLES = ["system", "user", "assistant", "tool"];
const LONG_TEXT = 1500;

function badge(text, style) {
  return el("span", "badge " + (style || ""), text);
}

function rewardBadge(reward) {
  const enough = typeof reward === "number" && reward >= successReward();
  return badge(number(reward), "reward " + (enough ? "good" : typeof reward === "number" && reward > 0 ? "half" : "low"));
}

const stopBadge = (episode) => badge(stop(episode), "stop stop-" + stop(episode));

function prose(text, classes) {
  if (text.length <= LONG_TEXT) return el("div", "text " + (classes || ""), text);
  const rest = el("details", "more", el("summary", "", `${number(text.length - LONG_TEXT)} more characters`), el("div", "text", text.slice(LONG_TEXT)));
  return el("div", classes || "", el("div", "text", text.slice(0, LONG_TEXT)), rest);
}

// A call as name and arguments; arguments that are not an object are shown as they were written.
function callView(call) {
  let parsed = null;
  try {
    parsed = JSON.parse(call.arguments);
  } catch {
    parsed = null;
  }
  const isObject = parsed !== null && typeof parsed === "object" && !Array.isArray(parsed);
  const shown = isObject
    ? Object.entries(parsed).map(([name, one]) => el("div", "argument", el("span", "name", name), prose(typeof one === "string" ? one : JSON.stringify(one))))
    : [prose(call.arguments, "bad")];
  return el("div", "call", el("span", "tool-name", call.name || "(no name)"), el("div", "arguments", shown));
}

function messageView(message, resultsOf) {
  const role = ROLES.includes(message.role) ? message.role : "unknown";
  const isError = role === "tool" && Boolean(message.error);
  const name = role === "tool" ? message.name || "result" : role === "unknown" ? message.role || "?" : role;
  const view = el("div", `message role-${role}${isError ? " error" : ""}`, el("div", "role", name));
  if (message.reasoning_content) view.append(fold("reasoning", prose(message.reasoning_content)));
  if (message.content) view.append(prose(message.content));
  const calls = message.tool_calls || [];
  for (const call of calls) {
    const results = resultsOf ? resultsOf.filter((one) => one.role === "tool" && one.tool_call_id === call.id) : [];
    view.append(callView(call), ...results.map((one) => messageView(one)));
  }
  if (!message.content && !calls.length && !message.reasoning_content) view.append(el("div", "empty", "(empty)"));
  return view;
}

function turnView(turn, place, tokensOf) {
  const facts = [`turn ${place + 1}`, seconds(turn.policy_s) + " policy", seconds(turn.env_s) + " environment"];
  if (turn.completion_tokens !== null) facts.push(`${number(turn.prompt_tokens)} → ${number(turn.completion_tokens)} tokens`);
  if (turn.reward) facts.push("reward " + number(turn.reward));
  if (turn.advantage !== null) facts.push("advantage " + number(turn.advantage));
  const view = el("div", "turn", el("div", "facts", facts.map((fact) => el("span", "", fact))));
  const answered = new Set(((turn.message && turn.message.tool_calls) || []).map((call) => call.id));
  if (turn.message) view.append(messageView(turn.message, turn.history_edited ? null : turn.observation));
  if (turn.raw_text !== null && !turn.message) view.append(el("div", "message role-assistant", el("div", "role", "assistant, as sampled"), prose(turn.raw_text)));
  if (turn.failure !== null) view.append(el("p", "notice bad", turn.failure));
  if (turn.history_edited) {
    view.append(fold("the environment rewrote the history; it now reads", turn.observation.map((one) => messageView(one))));
  } else {
    view.append(...turn.observation.filter((one) => !(one.role === "tool" && answered.has(one.tool_call_id))).map((one) => messageView(one)));
  }
  return view;
}

function conversation(body) {
  return [
    el("div", "turn", body.initial_messages.map((one) => messageView(one))),
    ...body.turns.map((turn, place) => turnView(turn, place)),
    body.stop_detail ? el("p", "notice", body.stop_detail) : null,
    body.close_error ? el("p", "notice bad", "closing failed: " + body.close_error) : null,
  ];
}

function figures(episode) {
  const pairs = [
    ["step", value("step", episode)], ["phase", phase(episode)], ["episode", value("episode_index", episode)],
    ["shaped reward", value("shaped_reward", episode)], ["advantage", value("advantage", episode)],
    ["attempt", value("attempt", episode) || null],
  ].filter(([, one]) => one !== null && one !== "" && one !== undefined);
  const shown = pairs.map(([name, one]) => el("span", "pair", el("span", "name", name), number(one)));
  if (value("trained", episode) === false) shown.push(el("span", "pair", "not trained: all rewards of its group are equal"));
  return el("div", "pairs", shown,
    el("span", "pair", el("span", "name", "policy"), seconds(value("policy_s", episode))),
    el("span", "pair", el("span", "name", "environment"), seconds(value("env_s", episode))),
    el("span", "pair", el("span", "name", "sampled tokens"), number(value("sampled_tokens", episode))));
}

function taskHead(one) {
  return el("div", "task-head", el("span", "id", one.id),
    one.target === null ? null : el("span", "pair", el("span", "name", "target"), el("span", "target", one.target)),
    one.metadata === null ? null : fold("metadata", el("pre", "", one.metadata)));
}

const LEFT_OUT = "This conversation was left out to keep the file small. It is in the run's episode files.";

let latest = 0; // number of the latest request: the answer to an earlier one is not shown

function nextRequest() {
  byId("detail").dataset.shown = "";
  return ++latest;
}

function show(name, ...children) {
  const detail = byId("detail");
  detail.replaceChildren(...children.filter(Boolean));
  detail.scrollTop = 0;
  detail.dataset.shown = name;
}

async function showEpisode(episode, withTokens) {
  const mine = nextRequest();
  const body = await loadBody(episode);
  const tokens = col.tokens[episode] ? await unpack("tokens-" + episode) : null;
  if (mine !== latest) return;
  const group = groupMembers(episode);
  const tools = el("div", "tools",
    group.length > 1 ? button(`side by side (${group.length})`, "", () => select("group", col.group[episode])) : null,
    button("this task", "", () => select("task", col.task[episode])),
    tokens ? button(withTokens ? "conversation" : "tokens", "main", () => showEpisode(episode, !withTokens)) : null);
  show(
    withTokens && tokens ? "tokens" : "episode",
    el("div", "head", el("div", "line", rewardBadge(value("reward", episode)), stopBadge(episode), tools), taskHead(task(episode)), figures(episode)),
    ...(withTokens && tokens ? [tokenView(episode, tokens)] : body === null ? [el("p", "notice", LEFT_OUT)] : conversation(body)),
    ...(body === null ? [] : [el("div", "folds",
      Object.keys(body.metrics).length ? fold("metrics", table(["metric", "value"], Object.entries(body.metrics))) : null,
      fold("tools offered", el("pre", "", index.shared[body.tool_specs])),
      fold("limits", el("pre", "", index.shared[body.limits])),
      fold("provenance", el("pre", "", `environment ${body.env_id}\nseed ${body.seed}\nreset ${seconds(body.reset_s)}\n${index.shared[body.provenance]}`)))]),
  );
}

function groupMembers(episode) {
  const members = [];
  for (let other = 0; other < count; other++) if (col.group[other] === col.group[episode]) members.push(other);
  return members;
}

async function showGroup(group) {
  const mine = nextRequest();
  const members = groupMembers(col.group.indexOf(group));
  const bodies = await Promise.all(members.map(loadBody));
  if (mine !== latest) return;
  const first = members[0];
  const rewards = members.map((episode) => value("reward", episode)).filter((one) => typeof one === "number");
  const columns = members.map((episode, place) => el("div", "column",
    el("div", "line", rewardBadge(value("reward", episode)), stopBadge(episode),
      el("div", "tools", button("open", "", () => select("episode", episode)))),
    el("div", "pairs", el("span", "pair", el("span", "name", "episode"), number(value("episode_index", episode))),
      value("advantage", episode) === null ? null : el("span", "pair", el("span", "name", "advantage"), number(value("advantage", episode)))),
    bodies[place] === null ? el("p", "notice", LEFT_OUT) : bodies[place].turns.map((turn, at) => turnView(turn, at)),
    bodies[place] && bodies[place].stop_detail ? el("p", "notice", bodies[place].stop_detail) : null));
  const opening = bodies.find(Boolean);
  show(
    "group",
    el("div", "head",
      el("div", "line", badge(`group of ${members.length}`), el("span", "pair", el("span", "name", "mean reward"), number(mean(rewards))),
        value("step", first) === null ? null : el("span", "pair", el("span", "name", "step"), number(value("step", first))),
        el("div", "tools", button("this task", "", () => select("task", col.task[first])))),
      taskHead(task(first))),
    opening ? el("div", "turn", opening.initial_messages.map((one) => messageView(one))) : null,
    el("div", "columns", columns),
  );
}

function showTask(place) {
  nextRequest();
  const one = index.tasks[place];
  const members = [];
  for (let episode = 0; episode < count; episode++) if (col.task[episode] === place) members.push(episode);
  const steps = new Map();
  for (const episode of members) {
    const step = value("step", episode);
    if (step === null || typeof value("reward", episode) !== "number") continue;
    if (!steps.has(step)) steps.set(step, []);
    steps.get(step).push(value("reward", episode));
  }
  const points = [...steps].sort((a, b) => a[0] - b[0]).map(([step, rewards]) => [step, mean(rewards)]);
  const rewards = members.map((episode) => value("reward", episode)).filter((reward) => typeof reward === "number");
  const opened = members.slice(0, 200).map((episode) => {
    const row = button("", "episode-row", () => select("episode", episode));
    row.append(rewardBadge(value("reward", episode)), stopBadge(episode), el("span", "answer", value("answer", episode) || "(no text)"),
      el("span", "facts", [phase(episode), value("step", episode) === null ? "" : "step " + value("step", episode), plural(value("turns", episode), "turn")].filter(Boolean).join(" · ")));
    return row;
  });
  show(
    "task",
    el("div", "head", el("div", "line", badge("task"), el("span", "pair", el("span", "name", "episodes"), number(members.length)),
      el("span", "pair", el("span", "name", "mean reward"), number(mean(rewards))),
      el("div", "tools", button("list only this task", "main", () => browse({ task: place, mode: "episodes" })))), taskHead(one)),
    el("div", "turn", el("div", "message role-user", el("div", "role", "prompt"), prose(one.prompt))),
    el("div", "charts", points.length > 1 ? lineChart("mean reward by step", [{ name: "reward", style: "c0", points }]) : null),
    ...opened,
    members.length > opened.length ? el("p", "notice", `${members.length - opened.length} more: choose “list only this task”.`) : null,
  );
}
